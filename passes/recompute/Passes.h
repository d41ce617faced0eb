//===- Passes.h - passes of the recompute phase ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_PASSES_H
#define MESHWRIGHT_PASSES_RECOMPUTE_PASSES_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Support/NumberOrAuto.h"
#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/lib/Support/RecomputeMode.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/Pass.h"

#include <functional>
#include <optional>

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/recompute/Passes.h.inc"

/// Returns the least bytes that an SPMD function needs on a rank, if these are more than a ceiling;
/// nothing if it keeps to the ceiling. The schedule phase knows it, so passes/Pipeline.cpp supplies
/// this function.
using FindExcess = std::function<std::optional<int64_t>(mlir::FunctionOpInterface, int64_t ceiling)>;

/// Returns the picoseconds that the schedule of an SPMD function takes under a ceiling; nothing if no
/// schedule keeps to it, or with `bestOnly`, if the one that hides most does not. From the schedule
/// phase, too.
using FindTime = std::function<std::optional<int64_t>(mlir::FunctionOpInterface, int64_t ceiling,
                                                      bool bestOnly)>;

/// Mode auto with a ceiling fails without a function that finds the excess.
std::unique_ptr<mlir::Pass> createRecomputePass(RecomputePassOptions options,
                                                FindExcess findExcess);

/// Without a function that finds times, auto keeps nothing.
std::unique_ptr<mlir::Pass> createSplitFetchesPass(SplitFetchesPassOptions options, FindTime findTime);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_RECOMPUTE_PASSES_H

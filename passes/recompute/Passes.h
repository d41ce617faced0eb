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

/// The plan of an SPMD function under a memory ceiling.
struct TriedPlan {
  /// The least bytes that a rank needs, if these are more than the ceiling, else 0.
  int64_t needed = 0;
  /// Picoseconds of its schedule, if it keeps to the ceiling.
  int64_t time = 0;
  /// The ceiling leaves room for the order that hides most: less memory would hide no more.
  bool hidesMost = false;

  bool fits() const { return needed == 0; }
};

/// Plans a copy of an SPMD function under a ceiling, 0 for none. Values of the backward pass are kept in
/// shards or whole; auto takes the choice that keeps to the ceiling, or that needs less. The schedule phase
/// knows plans, so passes/Pipeline.cpp supplies this function.
using TryPlan =
    std::function<TriedPlan(mlir::FunctionOpInterface, int64_t ceiling, OnOffAuto shardSaved)>;

/// Returns the picoseconds that the schedule of an SPMD function takes under a ceiling; nothing if no
/// schedule keeps to it, or with `bestOnly`, if the one that hides most does not. The function is a copy
/// for this purpose. From the schedule phase, too.
using FindTime = std::function<std::optional<int64_t>(mlir::FunctionOpInterface, int64_t ceiling,
                                                      bool bestOnly)>;

/// Mode auto with a ceiling fails without a function that tries plans.
std::unique_ptr<mlir::Pass> createRecomputePass(RecomputePassOptions options, TryPlan tryPlan);

/// Without a function that tries plans, auto keeps no values in shards.
std::unique_ptr<mlir::Pass> createSaveShardsPass(SaveShardsPassOptions options, TryPlan tryPlan);

/// Without a function that finds times, auto keeps nothing.
std::unique_ptr<mlir::Pass> createSplitFetchesPass(SplitFetchesPassOptions options, FindTime findTime);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_RECOMPUTE_PASSES_H

//===- Passes.h - passes of the planner ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_PASSES_H
#define MESHWRIGHT_PASSES_PLAN_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace meshwright {

struct ParallelizeOptions;

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/plan/Passes.h.inc"

/// The pass for options that are read already.
std::unique_ptr<mlir::Pass> createChoosePlanPass(const ParallelizeOptions &request);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_PASSES_H

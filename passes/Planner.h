//===- Planner.h - a mesh and options by finished plans ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

// The planner (passes/plan) chooses what a user leaves open: a mesh of some ranks, and options that are auto.
//
//   1. `listCandidates`: the factors of the ranks over the roles of axes.
//   2. `PlanSearch` plans candidates on copies, in the order of a lower bound of their time, until
//      the bound exceeds the best plan. Then it changes one option of the best meshes at a time.
//   3. The best plan by the objective wins. Of plans within 0.1 % of each other, the one with the
//      fewest axes and stated options wins.
//
// The choice depends on the program and the options alone, not on time or on the number of threads.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLANNER_H
#define MESHWRIGHT_PASSES_PLANNER_H

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/IR/BuiltinOps.h"

namespace meshwright {

/// Returns the options that the planner chooses for a global program, and adds its decision to the
/// log. The result has a mesh and does not ask the planner. A mesh of the module that no value
/// uses is removed where the planner chooses another one. Fails after an error: if the program is
/// an SPMD program or has shardings over a mesh of its own, and if no plan fits in memory.
mlir::FailureOr<ParallelizeOptions> choosePlan(mlir::ModuleOp module,
                                               const ParallelizeOptions &request);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLANNER_H

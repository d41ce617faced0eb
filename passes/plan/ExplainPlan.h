//===- ExplainPlan.h - why a plan was chosen --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PLAN_EXPLAINPLAN_H
#define MESHWRIGHT_PASSES_PLAN_EXPLAINPLAN_H

#include "meshwright/passes/plan/Search.h"

namespace meshwright {

/// The options of a plan that differ from the defaults.
std::string describePlan(const ParallelizeOptions &options);

/// Adds the choice to the log of decisions: the plan and the next ones with the reason why each lost, the front
/// of time over memory, and which other memory or links would change the choice.
void logChoice(mlir::ModuleOp module, const PlanSearch &search, Objective objective);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PLAN_EXPLAINPLAN_H

//===- LeastCeiling.cpp - the least memory that a plan needs --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/RunPasses.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

using namespace meshwright;
using mlir::failed;
using mlir::ModuleOp;

/// Returns true if a weight is gathered more than once.
static bool gathersAgain(ModuleOp module) {
  for (auto func : module.getOps<mlir::func::FuncOp>()) {
    ProgramSet<mlir::Value> gathered;
    for (auto collective : func.getOps<dist::CollectiveOpInterface>())
      if (collective.getRole() == dist::CollectiveRole::Weights &&
          !gathered.insert(collective->getOperand(0)).second)
        return true;
  }
  return false;
}

bool Plan::Impl::mayStoreLess() const {
  return options->memoryCeiling &&
         (options->recompute == RecomputeMode::Auto || options->gtpKeep == OnOffAuto::Auto ||
          options->shardSaved == OnOffAuto::Auto);
}

std::optional<int64_t> Plan::Impl::findLeastCeiling() const {
  ModuleOp executed = get(getExecutedPhase());
  bool mayCut = options->shardSaved == OnOffAuto::Auto &&
                llvm::any_of(planned.decisions, [](const auto &decision) { return decision.pass == "save-shards"; });
  if (!optimised || (options->recompute != RecomputeMode::Auto && !mayCut && gathersAgain(executed)))
    return meshwright::findLeastCeiling(executed);
  mlir::OwningOpRef<ModuleOp> frugal = optimised.get().clone();
  ParallelizeOptions least = *options, others = *options;
  least.memoryCeiling = 1;
  others.memoryCeiling = std::nullopt;
  if (failed(runPasses(*frugal, [&](mlir::OpPassManager &pm) {
        buildPhase(pm, least, Phase::Stored);
        // The other requests for the schedule.
        buildPhase(pm, others, Phase::Spmd);
      })))
    return std::nullopt;
  for (auto func : frugal->getOps<mlir::func::FuncOp>())
    if (!target.empty())
      meshwright::setTarget(func, target);
  return meshwright::findLeastCeiling(*frugal);
}

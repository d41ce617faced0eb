//===- PricePlan.cpp - time and memory of a finished plan --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/plan/PricePlan.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Reshard/Reshard.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/optimise/Pipeline.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

using namespace mlir;
using namespace meshwright;

/// The function of the default entry; null if it has another form.
static func::FuncOp getDefaultEntry(ModuleOp module) {
  auto entries = nn::getEntries(module);
  return entries.empty() ? nullptr : dyn_cast<func::FuncOp>(*entries.front());
}

/// Adds times and memory of a planned rt program.
static void addSchedule(func::FuncOp entry, Memory counted, PlanPrice &price) {
  Memory memory = withPlan(counted, entry);
  for (nn::CallStep step : nn::getSteps(entry)) {
    auto function = cast<func::FuncOp>(*step.function);
    CommunicationTime time = estimateCommunication(function);
    price.seconds += double(step.getRuns()) * time.total;
    price.exposed += double(step.getRuns()) * time.exposed;
    if (function != entry)
      memory.activationsPeak =
          std::max(memory.activationsPeak, withPlan(counted, function).activationsPeak);
  }
  price.memory = memory.getAll();
}

PlanPricer::PlanPricer(ModuleOp program, const ShortPrograms *shorts)
    : shorts(shorts), copy(shorts ? *shorts->few : program) {
  if (!copy.get())
    return;
  if (shorts)
    more = copy.copy(*shorts->more);
  // Plans of one mesh, and the short programs, move the same values.
  keepReshardPlans(copy.get()->getContext());
}

PlanPrice PlanPricer::price(const ParallelizeOptions &options) {
  PlanPrice few = price(copy.get(), options);
  if (!shorts || !few.isPlanned())
    return few;
  PlanPrice whole = price(more ? *more : ModuleOp(), options);
  if (!whole.isPlanned())
    return whole;
  whole.seconds = shorts->extend(few.seconds, whole.seconds);
  whole.exposed = std::max(0.0, shorts->extend(few.exposed, whole.exposed));
  // Each layer adds memory, though the peak of the shorter program may be at another op.
  whole.memory = std::max(whole.memory, shorts->extend(few.memory, whole.memory));
  whole.bytes = shorts->extend(few.bytes, whole.bytes);
  return whole;
}

PlanPrice PlanPricer::price(ModuleOp program, const ParallelizeOptions &options) {
  PlanPrice price;
  auto refuse = [&] {
    price.refusal = copy.takeError();
    if (price.refusal.empty())
      price.refusal = "cannot be planned";
    return price;
  };
  if (!program)
    return refuse();
  OwningOpRef<ModuleOp> module = program.clone();
  dist::DistDialect::getDecisionLog(module->getContext()).clear();
  auto plan = [&](OpPassManager &pm) { buildParallelizePipeline(pm, options, Phase::Spmd); };
  if (failed(copy.run(*module, plan)))
    return refuse();
  func::FuncOp entry = getDefaultEntry(*module);
  if (!entry)
    return refuse();
  Memory counted = countMemory(entry);
  for (nn::CallStep step : nn::getSteps(entry)) {
    FailureOr<Traffic> traffic = countTraffic(step.function);
    if (failed(traffic))
      return refuse();
    price.bytes += step.getRuns() * traffic->bytes;
  }
  // The pipeline proves the plan that is chosen.
  if (failed(copy.run(*module, [](OpPassManager &pm) { buildSchedulePhase(pm); })))
    return refuse();
  addSchedule(getDefaultEntry(*module), counted, price);
  return price;
}

std::optional<PlanPricer::Estimate> PlanPricer::estimate(const ParallelizeOptions &options) {
  if (!copy.get())
    return std::nullopt;
  OwningOpRef<ModuleOp> module = copy.get().clone();
  dist::DistDialect::getDecisionLog(module->getContext()).clear();
  auto plan = [&](OpPassManager &pm) {
    for (Phase phase : {Phase::Annotated, Phase::Propagated, Phase::Partitioned})
      buildPhase(pm, options, phase);
    buildOptimisePipeline(pm, {options.sequenceParallel, options.reduceTypes, options.gtpReduce});
  };
  bool isPlanned = succeeded(copy.run(*module, plan));
  copy.takeError();
  func::FuncOp entry = isPlanned ? getDefaultEntry(*module) : nullptr;
  dist::MeshAttr mesh = entry ? dist::getSpmdMesh(entry) : nullptr;
  if (!mesh)
    return std::nullopt;
  ProgramCost cost = getProgramCost(entry, CostModel(mesh));
  return Estimate{double(cost.compute) * 1e-12, double(cost.communication) * 1e-12};
}

int64_t PlanPricer::findLeastMemory(ParallelizeOptions options) {
  options.memoryCeiling = std::nullopt;
  if (!copy.get())
    return 0;
  OwningOpRef<ModuleOp> module = copy.get().clone();
  auto plan = [&](OpPassManager &pm) { buildParallelizePipeline(pm, options, Phase::Spmd); };
  bool isPlanned = succeeded(copy.run(*module, plan));
  copy.takeError();
  return isPlanned ? findLeastCeiling(*module).value_or(0) : 0;
}

//===- Pipeline.cpp - the schedule phase ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Pipeline.h"

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/passes/schedule/LaunchTasks.h"
#include "meshwright/passes/schedule/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildKernelPipeline(OpPassManager &pm, const ScheduleOptions &options) {
  pm.addNestedPass<func::FuncOp>(createSplitRoutingsPass());
  pm.addNestedPass<func::FuncOp>(createCompactRowsPass());
  pm.addNestedPass<func::FuncOp>(createExpandOpsPass());
  pm.addNestedPass<func::FuncOp>(createReplaceRowsPass());
  if (options.splitCollectives)
    pm.addNestedPass<func::FuncOp>(createSplitCollectivesPass());
  FormKernelsPassOptions kernels;
  kernels.keepProbed = options.keepProbed;
  pm.addNestedPass<func::FuncOp>(createFormKernelsPass(kernels));
  // Weights are packed before an order is chosen, because a memory ceiling counts them.
  pm.addNestedPass<func::FuncOp>(createPackWeightsPass());
  pm.addNestedPass<func::FuncOp>(createFuseDecodingsPass());
}

void meshwright::buildOrderPipeline(OpPassManager &pm) {
  pm.addNestedPass<func::FuncOp>(createPlanPrefetchPass());
  pm.addNestedPass<func::FuncOp>(createOrderUpdatesPass());
}

void meshwright::buildPlanPipeline(OpPassManager &pm, const ScheduleOptions &options) {
  pm.addNestedPass<func::FuncOp>(createPlanBuffersPass());
  PlanGraphsPassOptions graphs;
  graphs.keepProbed = options.keepProbed;
  pm.addNestedPass<func::FuncOp>(createPlanGraphsPass(graphs));
}

void meshwright::buildSchedulePipeline(OpPassManager &pm, const ScheduleOptions &options) {
  buildKernelPipeline(pm, options);
  buildOrderPipeline(pm);
  pm.addNestedPass<func::FuncOp>(createOverlapCollectivesPass());
  buildPlanPipeline(pm, options);
}

CommunicationTime meshwright::estimateCommunication(func::FuncOp func) {
  dist::MeshAttr mesh = dist::getSpmdMesh(func);
  if (!mesh)
    mesh = dist::MeshAttr::get(func.getContext(), {}, "");
  LaunchTasks launches(func, CostModel(mesh), RunBeside::Always);
  launches.keepWaits();
  int64_t blocking = 0;
  CommunicationTime result;
  for (auto [task, launch] : llvm::zip_equal(launches.tasks, launches.launches)) {
    if (auto kernel = dyn_cast<rt::KernelOp>(launch))
      result.kernels[getWork(kernel, replacesRowsOfState(kernel, 0)).kind] += double(task.time) * 1e-12;
    else if (task.link == 0)
      blocking += task.time;
  }
  Schedule schedule = simulateInOrder(launches.tasks);
  int64_t exposed = schedule.exposed + blocking, all = schedule.communication + blocking;
  result.exposed = double(exposed) * 1e-12;
  result.hidden = double(std::max<int64_t>(0, all - exposed)) * 1e-12;
  result.total = double(schedule.time) * 1e-12;
  return result;
}

bool meshwright::isPlanned(func::FuncOp func) { return func->hasAttr(rt::RtDialect::kArenaAttr); }

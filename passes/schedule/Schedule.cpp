//===- Schedule.cpp - the schedule phase ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Schedule.h"

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/verify/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildSchedule(OpPassManager &pm, const ScheduleOptions &options) {
  // Values that somebody looks at stay whole; and only what is the placement of a
  // global program can be cut by what its values are.
  if (!options.keepProbed && options.verifyPlacement)
    pm.addNestedPass<func::FuncOp>(createSplitCollectives());
  FormKernelsOptions kernels;
  kernels.keepProbed = options.keepProbed;
  pm.addNestedPass<func::FuncOp>(createFormKernels(kernels));
  pm.addNestedPass<func::FuncOp>(createOverlapCollectives());
  PackWeightsOptions weights;
  weights.targetCpu = options.targetCpu;
  pm.addNestedPass<func::FuncOp>(createPackWeights(weights));
  pm.addNestedPass<func::FuncOp>(createPlanBuffers());
  if (options.verifyPlacement)
    pm.addNestedPass<func::FuncOp>(createVerifyPlacement());
}

bool meshwright::isPlanned(func::FuncOp func) { return func->hasAttr(rt::RtDialect::kArenaAttr); }

//===- Pipeline.cpp - the optimise phase ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/optimise/Pipeline.h"

#include "meshwright/passes/optimise/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildOptimisePipeline(OpPassManager &pm, const OptimiseOptions &options) {
  if (!options.reduceTypes.rules.empty())
    pm.addPass(createWidenSumsPass({options.reduceTypes}));
  if (options.sequenceParallel != OnOffAuto::Off) {
    pm.addNestedPass<func::FuncOp>(createDecomposeAllReducePass({options.sequenceParallel}));
    pm.addNestedPass<func::FuncOp>(createSinkAllGatherPass());
  }
  pm.addNestedPass<func::FuncOp>(createHoistSlicesPass());
  pm.addNestedPass<func::FuncOp>(createHoistReductionsPass());
  pm.addNestedPass<func::FuncOp>(createMoveTrueRowsPass());
  pm.addNestedPass<func::FuncOp>(createCombineCollectivesPass());
  if (options.gtpReduce == GtpReduce::Narrow)
    pm.addNestedPass<func::FuncOp>(createNarrowGradientsPass());
}

//===- Pipeline.cpp - from imported IR to launches ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/Pipeline.h"

#include "meshwright/passes/annotate/Passes.h"
#include "meshwright/passes/optimise/Passes.h"
#include "meshwright/passes/partition/Passes.h"
#include "meshwright/passes/propagate/Passes.h"
#include "meshwright/passes/report/Passes.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/verify/Passes.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace meshwright;

static void buildAnnotate(OpPassManager &pm, const ParallelizeOptions &options) {
  DeclareMeshPassOptions mesh;
  mesh.mesh = options.mesh;
  mesh.device = options.device.empty() ? "h100" : options.device;
  pm.addPass(createDeclareMeshPass(mesh));

  if (!options.shardings.rules.empty())
    pm.addPass(createAnnotateRulesPass({options.shardings}));

  AnnotateDataParallelPassOptions data;
  data.axis = options.dataParallel.getName("dp").str();
  data.optional = options.dataParallel.kind == AxisChoice::Default;
  pm.addPass(createAnnotateDataParallelPass(data));

  if (options.contextParallel.isWanted())
    pm.addPass(createSplitJointAttentionPass());
  // Stages that are laid out for themselves, and those that are not as the others.
  std::vector<std::string> folded, apart;
  for (const FoldRule &rule : options.fold)
    apart.push_back(rule.stage);
  if (options.contextParallel.isWanted()) {
    ChooseContextParallelPassOptions choose;
    choose.ulysses = options.contextParallel.ulysses;
    choose.ring = options.contextParallel.ring;
    choose.order = options.contextParallel.order;
    choose.data = data.axis;
    choose.tensor = options.tensorParallel.getName("tp").str();
    choose.exceptStages = apart;
    choose.memoryCeiling = options.memoryCeiling.value_or(0);
    pm.addPass(createChooseContextParallelPass(choose));
  }
  for (const FoldRule &rule : options.fold) {
    if (rule.mode == FoldMode::None)
      continue;
    folded.push_back(rule.stage);
    pm.addPass(createSplitFusedLinearsPass());
    FoldEncoderPassOptions fold;
    fold.stage = rule.stage;
    fold.mode = rule.mode;
    fold.ulysses = options.contextParallel.ulysses;
    fold.ring = options.contextParallel.ring;
    fold.data = data.axis;
    fold.tensor = options.tensorParallel.getName("tp").str();
    fold.sequenceParallel = options.sequenceParallel;
    fold.memoryCeiling = options.memoryCeiling.value_or(0);
    pm.addPass(createFoldEncoderPass(fold));
  }
  bool isTensorParallel = options.tensorParallel.kind != AxisChoice::None;
  AnnotateTensorParallelPassOptions tensor;
  if (isTensorParallel) {
    pm.addPass(createSplitFusedLinearsPass());
    tensor.axis = options.tensorParallel.getName("tp").str();
    tensor.optional = options.tensorParallel.kind == AxisChoice::Default;
    tensor.exceptStages = folded;
    pm.addPass(createAnnotateTensorParallelPass(tensor));
  }
  if (options.contextParallel.isWanted()) {
    AnnotateContextParallelPassOptions context;
    context.ulysses = options.contextParallel.ulysses;
    context.ring = options.contextParallel.ring;
    context.order = options.contextParallel.order;
    context.exceptStages = apart;
    pm.addPass(createAnnotateContextParallelPass(context));
  }
  if (!isTensorParallel)
    return;
  AnnotateScatterModesPassOptions scatter;
  scatter.axis = tensor.axis;
  scatter.optional = tensor.optional;
  scatter.mode = options.sequenceParallel;
  pm.addPass(createAnnotateScatterModesPass(scatter));
}

static void buildOptimise(OpPassManager &pm, const ParallelizeOptions &options) {
  if (options.sequenceParallel != OnOffAuto::Off) {
    // What was annotated is scattered already; this is for programs that come
    // with their all-reduces written out.
    DecomposeAllReducePassOptions decompose;
    decompose.when = options.sequenceParallel;
    pm.addNestedPass<func::FuncOp>(createDecomposeAllReducePass(decompose));
    pm.addNestedPass<func::FuncOp>(createSinkAllGatherPass());
  }
  pm.addNestedPass<func::FuncOp>(createHoistSlicesPass());
  pm.addNestedPass<func::FuncOp>(createCombineCollectivesPass());
}

ScheduleOptions meshwright::getScheduleOptions(const ParallelizeOptions &) {
  ScheduleOptions schedule;
  schedule.verifyPlacement = true;
  return schedule;
}

void meshwright::buildPhase(OpPassManager &pm, const ParallelizeOptions &options, Phase phase) {
  switch (phase) {
  case Phase::Annotated:
    buildAnnotate(pm, options);
    return;
  case Phase::Propagated:
    pm.addPass(createPropagateShardingsPass());
    return;
  case Phase::Partitioned:
    pm.addPass(createSumShardedSlicesPass());
    pm.addPass(createPartitionPass());
    return;
  case Phase::Spmd:
    buildOptimise(pm, options);
    pm.addNestedPass<func::FuncOp>(createVerifyPlacementPass());
    if (options.overlap != OnOffAuto::Auto || options.memoryCeiling)
      pm.addPass(createRequestSchedulePass(
          {options.overlap, options.memoryCeiling.value_or(0)}));
    if (options.memoryCeiling)
      pm.addPass(createCheckMemoryPass({*options.memoryCeiling}));
    return;
  case Phase::Rt:
    buildSchedule(pm, getScheduleOptions(options));
    return;
  }
}

void meshwright::buildParallelizePipeline(OpPassManager &pm, const ParallelizeOptions &options,
                                          Phase to) {
  for (Phase phase :
       {Phase::Annotated, Phase::Propagated, Phase::Partitioned, Phase::Spmd, Phase::Rt}) {
    buildPhase(pm, options, phase);
    if (phase == to)
      return;
  }
}

void meshwright::registerPipelines() {
  registerPassPipeline(
      "parallelize", "the whole pipeline, from a global program to SPMD IR",
      [](OpPassManager &pm, StringRef text,
         llvm::function_ref<LogicalResult(const llvm::Twine &)> error) -> LogicalResult {
        auto options = parseParallelizeOptions(text, error);
        if (failed(options))
          return failure();
        buildParallelizePipeline(pm, *options);
        return success();
      },
      [](llvm::function_ref<void(const mlir::detail::PassOptions &)>) {});
  PassPipelineRegistration<>("schedule",
                             "from SPMD IR, or a global program for one rank, to planned launches",
                             [](OpPassManager &pm) { buildPhase(pm, {}, Phase::Rt); });
}

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
  if (std::string text = options.getMeshText(); !text.empty())
    mesh.mesh = llvm::StringRef(text).drop_front(llvm::StringRef("mesh=").size()).str();
  mesh.device = options.device.empty() ? "h100" : options.device;
  pm.addPass(createDeclareMeshPass(mesh));

  AnnotateRulesPassOptions rules;
  // The one spelling of the option list.
  ParallelizeOptions only;
  only.shardings = options.shardings;
  if (!only.shardings.empty()) {
    std::string text = only.str();
    llvm::StringRef key = "shardings=";
    rules.shardings = text.substr(text.find(key) + key.size());
    pm.addPass(createAnnotateRulesPass(rules));
  }

  AnnotateDataParallelPassOptions data;
  data.axis = options.dataParallel.getName("dp").str();
  data.optional = options.dataParallel.kind == AxisChoice::Default;
  pm.addPass(createAnnotateDataParallelPass(data));

  if (options.contextParallel.isWanted())
    pm.addPass(createSplitJointAttentionPass());
  // Stages that are laid out for themselves, and those that are not as the others.
  std::string folded, apart;
  auto append = [](std::string &list, const std::string &stage) {
    list += (list.empty() ? "" : ",") + stage;
  };
  for (const FoldRule &rule : options.fold)
    append(apart, rule.stage);
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
    if (rule.mode == "none")
      continue;
    append(folded, rule.stage);
    pm.addPass(createSplitFusedLinearsPass());
    FoldEncoderPassOptions fold;
    fold.stage = rule.stage;
    fold.mode = rule.mode;
    fold.ulysses = options.contextParallel.ulysses;
    fold.ring = options.contextParallel.ring;
    fold.data = data.axis;
    fold.tensor = options.tensorParallel.getName("tp").str();
    fold.sequenceParallel = stringify(options.sequenceParallel).str();
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
  scatter.mode = stringify(options.sequenceParallel).str();
  pm.addPass(createAnnotateScatterModesPass(scatter));
}

static void buildOptimise(OpPassManager &pm, const ParallelizeOptions &options) {
  if (options.sequenceParallel != SequenceParallel::Off) {
    // What was annotated is scattered already; this is for programs that come
    // with their all-reduces written out.
    DecomposeAllReducePassOptions decompose;
    decompose.when = options.sequenceParallel == SequenceParallel::On ? "always" : "auto";
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
    if (options.overlap != Overlap::Auto || options.memoryCeiling)
      pm.addPass(createRequestSchedulePass(
          {stringify(options.overlap).str(), options.memoryCeiling.value_or(0)}));
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

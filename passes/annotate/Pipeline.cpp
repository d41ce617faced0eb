//===- Pipeline.cpp - the annotate phase ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/Pipeline.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildAnnotatePipeline(OpPassManager &pm, const AnnotateOptions &annotate) {
  const ParallelizeOptions &options = annotate.request;
  DeclareMeshPassOptions mesh;
  mesh.mesh = options.mesh;
  mesh.device = options.device.empty() ? "h100" : options.device;
  pm.addPass(createDeclareMeshPass(mesh));

  if (!options.shardings.rules.empty())
    pm.addPass(createAnnotateRulesPass({options.shardings}));

  AnnotateDataParallelPassOptions data;
  data.axis = options.dataParallel.getName("dp").str();
  data.optional = options.dataParallel.kind == AxisChoice::Auto;
  pm.addPass(createAnnotateDataParallelPass(data));

  if (options.contextParallel.isWanted())
    pm.addPass(createSplitJointAttentionPass());
  // Stages with a policy of their own; and stages that the option `fold` names.
  SmallVector<std::string> folded, apart;
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
    pm.addPass(createFoldEncoderPass(fold, annotate.priceFold));
  }
  bool isTensorParallel = options.tensorParallel.kind != AxisChoice::None;
  AnnotateTensorParallelPassOptions tensor;
  if (isTensorParallel) {
    pm.addPass(createSplitFusedLinearsPass());
    tensor.axis = options.tensorParallel.getName("tp").str();
    tensor.optional = options.tensorParallel.kind == AxisChoice::Auto;
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
  pm.addPass(
      createAnnotateScatterModesPass({tensor.axis, tensor.optional, options.sequenceParallel}));
}

void meshwright::buildFoldPipeline(OpPassManager &pm, const FoldEncoderPassOptions &fold) {
  pm.addPass(createFoldEncoderPass(fold));
  if (!fold.tensor.empty())
    pm.addPass(createAnnotateScatterModesPass(
        {fold.tensor, /*optional=*/true, fold.sequenceParallel}));
}

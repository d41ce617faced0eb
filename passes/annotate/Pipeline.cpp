//===- Pipeline.cpp - the annotate phase ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/Pipeline.h"

using namespace mlir;
using namespace meshwright;

namespace {
/// A policy of the phase: it writes layouts on a few values, over the axes that have its role.
struct Policy {
  /// Returns true for options of which the program may need the policy.
  bool (*applies)(const ParallelizeOptions &options);
  /// Adds its passes.
  void (*build)(OpPassManager &pm, const AnnotateOptions &options);
};
} // namespace

static bool always(const ParallelizeOptions &) { return true; }

template <AxisRole role> static bool mayHave(const ParallelizeOptions &options) {
  return options.axes.mayHave(role);
}

static bool shardsSequences(const ParallelizeOptions &options) {
  return options.shardsSequences();
}

static bool hasRules(const ParallelizeOptions &options) {
  return !options.shardings.rules.empty();
}

static bool dealsPages(const ParallelizeOptions &options) {
  return options.cacheSharding == CacheSharding::Sequence;
}

static bool limitsExperts(const ParallelizeOptions &options) { return options.expertCapacity > 0; }

static bool folds(const ParallelizeOptions &options) { return !options.fold.empty(); }

/// Adds a pass that needs no options.
template <std::unique_ptr<Pass> (*create)()>
static void add(OpPassManager &pm, const AnnotateOptions &) {
  pm.addPass(create());
}

static void addRules(OpPassManager &pm, const AnnotateOptions &annotate) {
  pm.addPass(createAnnotateRulesPass({annotate.request.shardings}));
}

static void addLimit(OpPassManager &pm, const AnnotateOptions &annotate) {
  pm.addPass(createLimitExpertsPass({annotate.request.expertCapacity}));
}

/// The stages that the option `fold` names: their sequences stay whole.
static SmallVector<std::string> getNamedStages(const ParallelizeOptions &options) {
  return llvm::map_to_vector(options.fold, [](const FoldRule &rule) { return rule.stage; });
}

static void addContextChoice(OpPassManager &pm, const AnnotateOptions &annotate) {
  const ParallelizeOptions &options = annotate.request;
  ChooseContextParallelPassOptions choose;
  choose.ulysses = options.axes.get(AxisRole::Ulysses);
  choose.ring = options.axes.get(AxisRole::Ring);
  choose.order = options.sequenceOrder;
  choose.exceptStages = getNamedStages(options);
  choose.memoryCeiling = options.memoryCeiling.value_or(0);
  pm.addPass(createChooseContextParallelPass(choose));
}

static void addFolds(OpPassManager &pm, const AnnotateOptions &annotate) {
  const ParallelizeOptions &options = annotate.request;
  for (const FoldRule &rule : options.fold) {
    if (rule.mode == FoldMode::None)
      continue;
    pm.addPass(createSplitFusedLinearsPass());
    FoldEncoderPassOptions fold;
    fold.stage = rule.stage;
    fold.mode = rule.mode;
    fold.ulysses = fold.ring = fold.tensor = AxisChoice();
    fold.sequenceParallel = options.sequenceParallel;
    fold.memoryCeiling = options.memoryCeiling.value_or(0);
    pm.addPass(createFoldEncoderPass(fold, annotate.priceFold));
  }
}

static void addExpertParallel(OpPassManager &pm, const AnnotateOptions &annotate) {
  AnnotateExpertParallelPassOptions experts;
  experts.load = annotate.request.expertLoad;
  pm.addPass(createAnnotateExpertParallelPass(experts));
}

static void addTensorParallel(OpPassManager &pm, const AnnotateOptions &annotate) {
  AnnotateTensorParallelPassOptions tensor;
  for (const FoldRule &rule : annotate.request.fold)
    if (rule.mode != FoldMode::None)
      tensor.exceptStages.push_back(rule.stage);
  pm.addPass(createAnnotateTensorParallelPass(tensor));
}

/// Returns true if groups of ranks, not all of them, may have layers of their own.
static bool hasGroups(const ParallelizeOptions &options) { return options.dpAttention.areSet(); }

static bool hasNoGroups(const ParallelizeOptions &options) {
  return mayHave<AxisRole::Tensor>(options) && !hasGroups(options);
}

static void addDpAttention(OpPassManager &pm, const AnnotateOptions &annotate) {
  const DpAttentionOptions &options = annotate.request.dpAttention;
  AnnotateDpAttentionPassOptions groups;
  groups.groups = options.groups;
  groups.denseTp = options.denseTp;
  groups.lmHead = options.lmHead;
  for (const FoldRule &rule : annotate.request.fold)
    if (rule.mode != FoldMode::None)
      groups.exceptStages.push_back(rule.stage);
  pm.addPass(createAnnotateDpAttentionPass(groups));
}

static void addContextParallel(OpPassManager &pm, const AnnotateOptions &annotate) {
  const ParallelizeOptions &options = annotate.request;
  AnnotateContextParallelPassOptions context;
  context.ulysses = context.ring = AxisChoice();
  context.order = options.sequenceOrder;
  context.exceptStages = getNamedStages(options);
  pm.addPass(createAnnotateContextParallelPass(context));
}

static void addScatterModes(OpPassManager &pm, const AnnotateOptions &annotate) {
  AnnotateScatterModesPassOptions scatter;
  scatter.mode = annotate.request.sequenceParallel;
  pm.addPass(createAnnotateScatterModesPass(scatter));
}

/// The option of gtp that a user states; empty if there is none.
static StringRef getGtpOption(const ParallelizeOptions &options) {
  return options.gtpAlign.number              ? "gtp-align"
         : options.gtpPrefetch.number         ? "gtp-prefetch"
         : options.gtpKeep != OnOffAuto::Auto ? "gtp-keep"
         : !options.gtpGather.rules.empty()   ? "gtp-gather"
         : options.gtpReduce != GtpReduce::Plain ? "gtp-reduce"
                                                 : "";
}

static bool mayStoreShards(const ParallelizeOptions &options) {
  return options.axes.mayHave(AxisRole::Gtp) || !getGtpOption(options).empty();
}

static void addGtp(OpPassManager &pm, const AnnotateOptions &annotate) {
  AnnotateGtpPassOptions gtp;
  gtp.align = annotate.request.gtpAlign;
  gtp.gather = annotate.request.gtpGather;
  gtp.rules = annotate.request.gtpAxes;
  gtp.option = getGtpOption(annotate.request).str();
  pm.addPass(createAnnotateGtpPass(gtp));
}

/// In the order in which they run. A policy leaves values alone that an earlier one has sharded.
static constexpr Policy policies[] = {
    {limitsExperts, addLimit},
    {always, add<createNarrowRowsPass>},
    {mayHave<AxisRole::Tensor>, add<createRefineBlocksPass>},
    {hasRules, addRules},
    {always, add<createAnnotateDataParallelPass>},
    {shardsSequences, add<createSplitJointAttentionPass>},
    {shardsSequences, addContextChoice},
    {folds, addFolds},
    {mayHave<AxisRole::Tensor>, add<createSplitFusedLinearsPass>},
    {mayHave<AxisRole::Expert>, addExpertParallel},
    {hasNoGroups, addTensorParallel},
    {hasGroups, addDpAttention},
    {dealsPages, add<createAnnotateDealtPagesPass>},
    {shardsSequences, addContextParallel},
    {mayHave<AxisRole::Tensor>, addScatterModes},
    {mayStoreShards, addGtp},
};

void meshwright::buildAnnotatePipeline(OpPassManager &pm, const AnnotateOptions &annotate) {
  const ParallelizeOptions &options = annotate.request;
  DeclareMeshPassOptions mesh;
  mesh.mesh = options.mesh;
  mesh.device = options.device.empty() ? "auto" : options.device;
  mesh.target = options.target;
  mesh.replacesDevice = !options.device.empty();
  mesh.roles = options.axes.complete();
  pm.addPass(createDeclareMeshPass(mesh));
  for (const Policy &policy : policies)
    if (policy.applies(options))
      policy.build(pm, annotate);
}

void meshwright::buildFoldPipeline(OpPassManager &pm, const FoldEncoderPassOptions &fold) {
  pm.addPass(createFoldEncoderPass(fold));
  if (fold.tensor.kind == AxisChoice::None)
    return;
  AnnotateScatterModesPassOptions scatter;
  scatter.axis = fold.tensor;
  scatter.optional = true;
  scatter.mode = fold.sequenceParallel;
  pm.addPass(createAnnotateScatterModesPass(scatter));
}

//===- FoldEncoder.cpp - a stage over the axes of another -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/AnnotateTensorParallel.h"
#include "meshwright/passes/annotate/ChooseFold.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_FOLDENCODERPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

struct FoldEncoderPass : meshwright::impl::FoldEncoderPassBase<FoldEncoderPass> {
  using FoldEncoderPassBase::FoldEncoderPassBase;
  FoldEncoderPass(FoldEncoderPassOptions options, PriceFold priceFold)
      : FoldEncoderPassBase(std::move(options)), priceFold(std::move(priceFold)) {}

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    if (hasStageMeshes(*meshOp)) {
      meshOp->emitOpError() << "has a mesh for each stage, and stage '" << stage
                            << "' cannot be folded: expected one mesh of all stages";
      return signalPassFailure();
    }
    if (failed(checkAxes(*meshOp)))
      return signalPassFailure();
    bool found = false;
    SmallVector<StringRef> known;
    for (func::FuncOp func : getGlobalFunctions(module)) {
      SmallVector<StringRef> stages = getStages(func);
      known.append(stages.begin(), stages.end());
      if (!llvm::is_contained(stages, stage))
        continue;
      found = true;
      FailureOr<FoldMode> chosen = mode.getValue();
      if (mode == FoldMode::Auto)
        chosen = choose(func, *meshOp);
      if (failed(chosen) || failed(fold(func, *meshOp, *chosen)))
        return signalPassFailure();
    }
    if (!found) {
      InFlightDiagnostic diag = module.emitError() << "fold names stage '" << stage << "'";
      if (known.empty())
        diag << ": expected a program that was composed of stages";
      else
        diag << ": expected one of " << llvm::join(known, ", ");
      return signalPassFailure();
    }
  }

private:
  LogicalResult checkAxes(MeshOp meshOp);
  AxisList getGroup(MeshOp meshOp, FoldMode mode);
  FailureOr<FoldMode> choose(func::FuncOp func, MeshOp meshOp);
  LogicalResult fold(func::FuncOp func, MeshOp meshOp, FoldMode mode);
  LogicalResult splitBatch(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
                           ArrayRef<Axis> axes);
  void reportWeights(func::FuncOp func, const FactorAnalysis &factors, MeshAttr mesh,
                     ArrayRef<Axis> axes);
  int findBatch(func::FuncOp func, const FactorAnalysis &factors);
  std::string describeWholeBatch(MeshAttr mesh, ArrayRef<Axis> axes);

  PriceFold priceFold;

  void log(Outcome outcome, Location loc, const std::string &message,
           std::vector<std::pair<std::string, double>> numbers = {}) {
    DistDialect::getDecisionLog(&getContext())
        .add("fold-encoder", outcome, loc, message, std::move(numbers));
  }
};

/// Checks that the mesh has the axes that the mode needs.
LogicalResult FoldEncoderPass::checkAxes(MeshOp meshOp) {
  if (mode == FoldMode::None)
    return success();
  RoleAxes ringRole(AxisRole::Ring, ring), ulyssesRole(AxisRole::Ulysses, ulysses);
  StageMesh view = getStageMeshes(meshOp).front();
  SmallVector<StringRef> ringNames = ringRole.getNames(view);
  SmallVector<StringRef> ulyssesNames = ulyssesRole.getNames(view);
  bool both = mode == FoldMode::Sp || mode == FoldMode::Batch;
  if (failed(ringRole.check(meshOp, "to fold over")) ||
      failed(ulyssesRole.check(meshOp, "to fold over")))
    return failure();
  bool isMissing = both                        ? ringNames.empty() && ulyssesNames.empty()
                   : mode == FoldMode::Ring    ? ringNames.empty()
                   : mode == FoldMode::Ulysses ? ulyssesNames.empty()
                                               : false;
  if (isMissing)
    return meshOp->emitError() << "fold mode '" << stringify(mode.getValue()) << "' for stage '" << stage
                               << "' needs the axis that context-parallel names: expected one for "
                               << (both ? StringRef("ulysses or ring")
                                       : stringify(mode.getValue()))
                               << ", got none";
  if (!ringNames.empty() && ringNames == ulyssesNames)
    return meshOp->emitOpError() << "axis \"" << ringNames.front()
                                 << "\" is both ring and ulysses of stage '" << stage
                                 << "': expected two axes";
  return success();
}

/// The axes of a mode, in the order of the mesh, without axes of size 1.
AxisList FoldEncoderPass::getGroup(MeshOp meshOp, FoldMode mode) {
  StageMesh view = getStageMeshes(meshOp).front();
  auto getAxes = [&](AxisRole role, const AxisChoice &choice) {
    return RoleAxes(role, choice).get(meshOp, view);
  };
  AxisList axes;
  bool both = mode == FoldMode::Sp || mode == FoldMode::Batch;
  if (both || mode == FoldMode::Ring)
    axes.append(getAxes(AxisRole::Ring, ring));
  if (both || mode == FoldMode::Ulysses)
    axes.append(getAxes(AxisRole::Ulysses, ulysses));
  if (mode == FoldMode::None)
    axes = getAxes(AxisRole::Tensor, tensor);
  if (mode == FoldMode::Replica) {
    AxisList others = getAxes(AxisRole::Data, data);
    for (auto [i, axis] : llvm::enumerate(view.mesh.getAxes()))
      if (Axis whole{int(i), 1, axis.getSize()}; whole.size > 1 && !contains(others, whole))
        axes.push_back(whole);
  }
  llvm::sort(axes);
  return axes;
}

/// Compares the modes. Modes with the same axes are one candidate.
FailureOr<FoldMode> FoldEncoderPass::choose(func::FuncOp func, MeshOp meshOp) {
  MeshAttr mesh = meshOp.getMesh();
  SmallVector<FoldCandidate> candidates{{FoldMode::None, getGroup(meshOp, FoldMode::None), {}}};
  for (FoldMode mode : {FoldMode::Sp, FoldMode::Ulysses, FoldMode::Ring, FoldMode::Replica}) {
    AxisList axes = getGroup(meshOp, mode);
    if (!axes.empty() && llvm::none_of(candidates, [&](const FoldCandidate &other) {
          return other.axes == axes;
        }))
      candidates.push_back({mode, axes, {}});
  }
  auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
  if (failed(factors))
    return failure();
  if (AxisList axes = getGroup(meshOp, FoldMode::Batch); !axes.empty()) {
    bool isWhole = findBatch(func, *factors) < 0;
    candidates.push_back(
        {FoldMode::Batch, axes, isWhole ? describeWholeBatch(mesh, axes) : std::string()});
  }
  if (candidates.size() == 1) {
    log(Outcome::Declined, func.getLoc(),
        llvm::formatv("fold=auto has no group of more than one rank for stage '{0}'", stage));
    return FoldMode::None;
  }
  if (!priceFold)
    return func.emitError() << "fold mode 'auto' for stage '" << stage
                            << "' needs prices: expected createFoldEncoderPass with a "
                               "function that prices, got none";
  FoldEncoderPassOptions options;
  options.stage = stage;
  options.ulysses = ulysses;
  options.ring = ring;
  options.data = data;
  options.tensor = tensor;
  options.sequenceParallel = sequenceParallel;
  options.memoryCeiling = memoryCeiling;
  return chooseFold(func, meshOp, candidates, options, priceFold);
}

LogicalResult FoldEncoderPass::fold(func::FuncOp func, MeshOp meshOp, FoldMode mode) {
  AxisList axes = getGroup(meshOp, mode);
  if (axes.empty()) {
    if (mode == FoldMode::None)
      return success();
    log(Outcome::Declined, func.getLoc(),
        llvm::formatv("stage '{0}' is not folded by '{1}': the group has one rank", stage,
                      stringify(mode)));
    return success();
  }
  auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
  if (failed(factors))
    return failure();
  if (mode == FoldMode::Batch)
    return splitBatch(func, *factors, meshOp, axes);
  bool rewritten = false;
  StageFilter stages;
  stages.only = {stage};
  if (failed(annotateTensorParallel(func, *factors, meshOp, WeightAxes::get(axes), stages, rewritten)))
    return failure();
  if (mode != FoldMode::None)
    log(Outcome::Applied, func.getLoc(),
        llvm::formatv("stage '{0}' is folded over {1}, {2} ranks", stage,
                      toString(axes, meshOp.getMesh()), getNumShards(axes)));
  reportWeights(func, *factors, meshOp.getMesh(), axes);
  return success();
}

/// Logs the weights of which a rank holds more than its share. Features that do not divide
/// are padded, few features take a part of the axes, and some weights take no axis.
void FoldEncoderPass::reportWeights(func::FuncOp func, const FactorAnalysis &factors, MeshAttr mesh,
                                    ArrayRef<Axis> axes) {
  int64_t size = getNumShards(axes);
  struct Entry {
    int64_t weights = 0, bytes = 0;
    std::string first;
  };
  // Keyed by the number of features and the ranks that they are sharded over.
  llvm::MapVector<std::pair<int64_t, int64_t>, Entry> padded;
  llvm::MapVector<int64_t, Entry> partial;
  auto count = [](Entry &entry, StringRef name, int64_t bytes) {
    if (entry.weights++ == 0)
      entry.first = name.str();
    entry.bytes += bytes;
  };
  for (BlockArgument arg : func.getArguments()) {
    std::optional<Weight> weight = getWeight(arg);
    bool isOwn = llvm::any_of(arg.getUsers(), [&](Operation *op) { return getStage(op) == stage; });
    if (!weight || !isOwn)
      continue;
    int64_t bytes = getTensorBytes(arg.getType()), shards = 1;
    if (ShardingAttr attr = getShardingAttr(arg)) {
      auto sharding =
          readSharding(attr, arg, factors, mesh, [&] { return emitError(arg.getLoc()); });
      if (failed(sharding))
        continue;
      for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(arg), sharding->dims))
        for (auto [cls, own] : llvm::zip_equal(classes, dim)) {
          int64_t ranks = getNumShards(own), features = factors.getSize(cls);
          shards *= ranks;
          if (features % ranks != 0)
            count(padded[{features, ranks}], weight->name, bytes);
        }
    }
    // Norms and biases are too small to mention.
    if (shards < size && cast<ShapedType>(arg.getType()).getRank() > 1)
      count(partial[shards], weight->name, bytes);
  }
  for (auto &[key, entry] : padded) {
    auto [features, ranks] = key;
    log(Outcome::Note, func.getLoc(),
        llvm::formatv("stage '{0}': {1} features, heads or rows are padded to {2} on {3} ranks in "
                      "{4} weights, {5} first",
                      stage, features, llvm::alignTo(features, ranks), ranks, entry.weights,
                      entry.first),
        {{"bytes", double(entry.bytes)}});
  }
  for (auto &[shards, entry] : partial)
    log(Outcome::Note, func.getLoc(),
        shards == 1
            ? llvm::formatv("stage '{0}': {1} weights, {2} first, are whole on each of the {3} "
                            "ranks",
                            stage, entry.weights, entry.first, size)
                  .str()
            : llvm::formatv("stage '{0}': {1} weights, {2} first, are sharded over {3} of the {4} "
                            "ranks, and every group of {3} ranks holds them",
                            stage, entry.weights, entry.first, shards, size)
                  .str(),
        {{"bytes", double(entry.bytes)}});
}

/// The factor of the batch: dimension 0 of the first input that the stage reads; -1 where
/// that has size 1.
int FoldEncoderPass::findBatch(func::FuncOp func, const FactorAnalysis &factors) {
  for (BlockArgument arg : func.getArguments()) {
    bool isOwn = llvm::any_of(arg.getUsers(), [&](Operation *op) { return getStage(op) == stage; });
    if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) || !isOwn)
      continue;
    ArrayRef<FactorClasses> classes = factors.getClasses(arg);
    return classes.empty() || classes[0].empty() ? -1 : classes[0].front();
  }
  return -1;
}

std::string FoldEncoderPass::describeWholeBatch(MeshAttr mesh, ArrayRef<Axis> axes) {
  return llvm::formatv("stage '{0}' has a batch of one, which is not split over {1}: every rank "
                       "computes all of it; a batch of {2} would be split",
                       stage, toString(axes, mesh), getNumShards(axes));
}

LogicalResult FoldEncoderPass::splitBatch(func::FuncOp func, const FactorAnalysis &factors,
                                          MeshOp meshOp, ArrayRef<Axis> axes) {
  MeshAttr mesh = meshOp.getMesh();
  auto symbol = FlatSymbolRefAttr::get(meshOp);
  int batch = findBatch(func, factors);
  if (batch < 0) {
    log(Outcome::Declined, func.getLoc(), describeWholeBatch(mesh, axes));
    return success();
  }
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments()) {
    bool isOwn = llvm::any_of(arg.getUsers(), [&](Operation *op) { return getStage(op) == stage; });
    if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) || !isOwn)
      continue;
    ArrayRef<FactorClasses> classes = factors.getClasses(arg);
    if (classes.empty() || classes[0].empty() || classes[0].front() != batch)
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(classes);
    if (ShardingAttr attr = getShardingAttr(arg)) {
      auto given = readSharding(attr, arg, factors, mesh, [&] { return emitError(arg.getLoc()); });
      if (failed(given))
        return failure();
      sharding = std::move(*given);
    }
    sharding.dims[0][0].append(axes.begin(), axes.end());
    attrs[arg.getArgNumber()] = writeSharding(sharding, arg, factors, mesh, symbol);
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
  // Other stages use whole batches.
  OpBuilder builder(func.getContext());
  for (Operation &op : llvm::make_early_inc_range(func.getBody().front().without_terminator())) {
    if (getStage(&op) != stage)
      continue;
    for (Value result : op.getResults()) {
      auto isOther = [&](OpOperand &use) { return getStage(use.getOwner()) != stage; };
      if (llvm::none_of(result.getUses(), isOther))
        continue;
      builder.setInsertionPointAfter(&op);
      ValueSharding whole = ValueSharding::getReplicated(factors.getClasses(result));
      Value constrained = ConstrainOp::create(builder, op.getLoc(), result,
                                              writeSharding(whole, result, factors, mesh, symbol));
      constrained.getDefiningOp()->setAttr(nn::NnDialect::kStageAttr, builder.getStringAttr(stage));
      result.replaceUsesWithIf(constrained, [&](OpOperand &use) {
        return isOther(use) && use.getOwner() != constrained.getDefiningOp();
      });
    }
  }
  log(Outcome::Applied, func.getLoc(),
      llvm::formatv("the batch of stage '{0}' is split over {1}, {2} ranks, and its weights are "
                    "whole on each",
                    stage, toString(axes, mesh), getNumShards(axes)));
  return success();
}

} // namespace

std::unique_ptr<Pass> meshwright::createFoldEncoderPass(FoldEncoderPassOptions options,
                                                        PriceFold priceFold) {
  return std::make_unique<FoldEncoderPass>(std::move(options), std::move(priceFold));
}

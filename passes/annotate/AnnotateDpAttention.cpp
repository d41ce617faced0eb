//===- AnnotateDpAttention.cpp - attention in groups of ranks -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/dialects/Dist/DpAttention.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/AnnotateTensorParallel.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/CompactTokens.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATEDPATTENTIONPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// The axes of tensor parallelism of a stage: the groups, and the ranks of a group.
struct GroupAxes {
  AxisList all, groups, ranks;
  /// The names of the axes, for messages.
  std::string names;
};

/// The weights of the products that no weight follows, and the rows that they read: of a program
/// or of several entries.
struct Head {
  int64_t weightBytes = 0, rowBytes = 0;
};

/// Reads the products of a function, by whether their operands depend on its inputs.
class Products {
public:
  Products(func::FuncOp func, const FactorAnalysis &factors, const StageFilter &stages);

  /// Adds the products that no weight follows.
  void addHead(Head &head) const;
  /// The fewest heads of keys or queries of attention; none without attention.
  std::optional<int64_t> countHeads() const;

private:
  bool isWeight(Value value) const { return !dependent.contains(value); }
  const FactorAnalysis &factors;
  ProgramSet<Value> dependent;
  SmallVector<Operation *> weighted, mixing;
};

} // namespace

Products::Products(func::FuncOp func, const FactorAnalysis &factors, const StageFilter &stages)
    : factors(factors) {
  WeightFinder weights(func);
  for (BlockArgument arg : func.getArguments())
    if (!weights.find(arg))
      dependent.insert(arg);
  for (Operation &op : func.getBody().front().without_terminator()) {
    if (llvm::none_of(op.getOperands(), [&](Value v) { return dependent.contains(v); }))
      continue;
    dependent.insert(op.result_begin(), op.result_end());
    if (!stages.contains(&op))
      continue;
    auto product = dyn_cast<MatrixOpInterface>(&op);
    if (product && op.hasTrait<Product>() && isWeight(op.getOperand(product.getMatrixOperand())))
      weighted.push_back(&op);
    else if (combinesValues(&op, [&](Value value) { return !isWeight(value); }))
      mixing.push_back(&op);
  }
}

void Products::addHead(Head &head) const {
  auto forEach = [&](Operation *op, FactorKind kind, auto visit) {
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
    unsigned matrix = cast<MatrixOpInterface>(op).getMatrixOperand();
    for (const auto &dim : opFactors.rule.operands[matrix])
      for (int factor : dim)
        if (opFactors.rule.factors[factor].kind == kind)
          for (int cls : opFactors.classes[factor])
            visit(cls);
  };
  llvm::DenseSet<int> contracted;
  for (Operation *op : weighted)
    forEach(op, FactorKind::Contracted, [&](int cls) { contracted.insert(cls); });
  for (Operation *op : weighted) {
    bool isLast = true;
    forEach(op, FactorKind::Parallel, [&](int cls) { isLast &= !contracted.contains(cls); });
    if (!isLast || nn::getRouted(op->getResult(0).getType()))
      continue;
    unsigned matrix = cast<MatrixOpInterface>(op).getMatrixOperand();
    head.weightBytes += getTensorBytes(op->getOperand(matrix).getType());
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (i != matrix && !isWeight(operand))
        head.rowBytes += getTensorBytes(operand.getType());
  }
}

std::optional<int64_t> Products::countHeads() const {
  std::optional<int64_t> fewest;
  for (Operation *op : mixing) {
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
    // A factor of all operands is the batch, or heads: of these two the smaller one counts.
    for (auto [i, factor] : llvm::enumerate(opFactors.rule.factors)) {
      auto has = [i = int(i)](const FactorRule::ValueFactors &dims) {
        return llvm::any_of(dims, [i](const auto &dim) { return llvm::is_contained(dim, i); });
      };
      if (factor.kind == FactorKind::Parallel && opFactors.rule.operands.size() > 1 && i > 0 &&
          llvm::all_of(ArrayRef(opFactors.rule.operands).take_front(2), has))
        fewest = std::min(fewest.value_or(factor.size), factor.size);
    }
  }
  return fewest;
}

namespace {

struct AnnotateDpAttentionPass
    : meshwright::impl::AnnotateDpAttentionPassBase<AnnotateDpAttentionPass> {
  using AnnotateDpAttentionPassBase::AnnotateDpAttentionPassBase;
  void runOnOperation() override;

private:
  LogicalResult checkServing(MeshOp meshOp, int64_t groupCount);
  FailureOr<int64_t> chooseGroups(MeshOp meshOp, int64_t ranks);
  FailureOr<GroupAxes> splitAxes(MeshOp meshOp, const StageMesh &view, int64_t groupCount);
  /// Returns true if a group computes the logits of its own tokens.
  bool choosesOwnHead(MeshOp meshOp, const GroupAxes &axes, const Head &head);
  LogicalResult annotate(func::FuncOp func, MeshOp meshOp, const StageMesh &view,
                         const GroupAxes &axes, bool &rewritten);
  void splitInputs(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
                   const StageMesh &view, const GroupAxes &axes);
  LogicalResult compactSharedTokens(func::FuncOp func, MeshOp meshOp, const StageMesh &view,
                                    const GroupAxes &axes, bool &rewritten);
  void report(func::FuncOp func, const GroupAxes &axes, int64_t batch);
  StageFilter getFilter(const StageMesh &view) const;

  DpAttention chosen;
};

} // namespace

StageFilter AnnotateDpAttentionPass::getFilter(const StageMesh &view) const {
  StageFilter stages = view.getFilter();
  for (const std::string &stage : exceptStages)
    stages.except.push_back(stage);
  return stages;
}

/// Checks the number of groups of a module that serves.
LogicalResult AnnotateDpAttentionPass::checkServing(MeshOp meshOp, int64_t groupCount) {
  std::optional<ServingSizes> sizes = nn::getServingSizes(getOperation());
  if (!sizes)
    return success();
  int64_t data = 1;
  for (const StageMesh &view : getStageMeshes(meshOp))
    data *= getNumShards(RoleAxes(AxisRole::Data, this->data).get(meshOp, view));
  if (sizes->groups != data * groupCount)
    return emitError(meshOp.getLoc())
           << "data-parallel-attention: expected a program that serves " << data * groupCount
           << " groups, " << groupCount << " on each of " << data
           << " ranks of data parallelism, got " << sizes->groups;
  return success();
}

/// Finds the number of groups that `auto` stands for: as many as keep ranks from holding equal
/// key/value heads.
FailureOr<int64_t> AnnotateDpAttentionPass::chooseGroups(MeshOp meshOp, int64_t ranks) {
  if (groups.number)
    return *groups.number;
  if (std::optional<ServingSizes> sizes = nn::getServingSizes(getOperation())) {
    int64_t data = 1;
    for (const StageMesh &view : getStageMeshes(meshOp))
      data *= getNumShards(RoleAxes(AxisRole::Data, this->data).get(meshOp, view));
    return std::max<int64_t>(1, sizes->groups / data);
  }
  int64_t shared = ranks;
  for (func::FuncOp func : getGlobalFunctions(getOperation())) {
    auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
    if (failed(factors))
      return failure();
    StageFilter all;
    if (std::optional<int64_t> heads = Products(func, *factors, all).countHeads())
      shared = std::min(shared, std::gcd(ranks, *heads));
  }
  return ranks / shared;
}

FailureOr<GroupAxes> AnnotateDpAttentionPass::splitAxes(MeshOp meshOp, const StageMesh &view,
                                                        int64_t groupCount) {
  RoleAxes role(AxisRole::Tensor, tensor);
  GroupAxes axes;
  axes.all = role.get(meshOp, view);
  axes.names = role.toString(view);
  int64_t size = getNumShards(axes.all);
  std::string ranks =
      llvm::formatv("{0} ranks of tensor parallelism{1}", size,
                    axes.names.empty() || size == 1 ? "" : " (" + axes.names + ")");
  std::optional<AxisList> major, minor;
  if (size % groupCount == 0) {
    major = getAxisPart(axes.all, 1, groupCount);
    minor = getAxisPart(axes.all, groupCount, size / groupCount);
  }
  if (!major || !minor)
    return emitError(meshOp.getLoc()) << "data-parallel-attention: expected a divisor of the "
                                      << ranks << ", got " << groupCount;
  int64_t dense = denseTp.number.value_or(size);
  if (dense != 1 && dense != size)
    return emitError(meshOp.getLoc())
           << "dense-tp: expected auto, 1 or the " << ranks << ", got " << dense;
  axes.groups = *major;
  axes.ranks = *minor;
  return axes;
}

bool AnnotateDpAttentionPass::choosesOwnHead(MeshOp meshOp, const GroupAxes &axes,
                                             const Head &head) {
  if (lmHead != OnOffAuto::Auto || axes.groups.empty() || head.weightBytes == 0)
    return lmHead == OnOffAuto::On;
  // Both ways compute as many products on a rank. A head of a group reads more of the weight, and
  // the rows of the other groups stay where they are.
  CostModel cost(meshOp.getMesh());
  int64_t all = getNumShards(axes.all), own = getNumShards(axes.ranks);
  double read = cost.getMemoryTime(head.weightBytes / own) * 1e-12;
  double shared = cost.getMemoryTime(head.weightBytes / all) * 1e-12;
  double moved =
      cost.getCost(CollectiveKind::AllGather, axes.groups, head.rowBytes).time * 1e-12;
  bool isOwn = read < shared + moved;
  DistDialect::getDecisionLog(&getContext())
      .add("annotate-dp-attention", isOwn ? Outcome::Applied : Outcome::Declined, meshOp.getLoc(),
           llvm::formatv("a head of each group's own tokens reads {0:F1} us of weights; one of all "
                         "tokens reads {1:F1} us, and gathers the tokens in {2:F1} us",
                         read * 1e6, shared * 1e6, moved * 1e6)
               .str(),
           {{"own_seconds", read}, {"shared_seconds", shared + moved}});
  return isOwn;
}

void AnnotateDpAttentionPass::report(func::FuncOp func, const GroupAxes &axes, int64_t batch) {
  bool isSplit = batch > 1;
  int64_t count = chosen.groups, ranks = getNumShards(axes.ranks);
  std::string padded =
      isSplit && batch % count
          ? llvm::formatv(", padded to {0}", llvm::alignTo(batch, count)).str()
          : "";
  std::string text =
      isSplit ? llvm::formatv("attention of {0} groups of {1} ranks of {2}, over a batch of {3}{4}",
                              count, ranks, axes.names, batch, padded)
                    .str()
              : llvm::formatv("a batch of {0} is not split over {1} groups of {2}: each computes "
                              "all of it; a batch of at least {1} would be split",
                              batch, count, axes.names)
                    .str();
  DistDialect::getDecisionLog(&getContext())
      .add("annotate-dp-attention", isSplit ? Outcome::Applied : Outcome::Declined, func.getLoc(),
           text,
           {{"groups", double(count)}, {"ranks", double(ranks)}, {"batch", double(batch)},
            {"dense_tp", double(chosen.denseTp)}, {"own_head", double(chosen.hasOwnHead)}});
}

/// The groups split the batch behind the axes that split it already.
void AnnotateDpAttentionPass::splitInputs(func::FuncOp func, const FactorAnalysis &factors,
                                          MeshOp meshOp, const StageMesh &view,
                                          const GroupAxes &axes) {
  // Each rank knows how many tokens the other groups have.
  BlockArgument counts = nn::getTokenSum(func) ? nn::findInput(func, nn::kCountsInput) : BlockArgument();
  auto isOwn = [&](BlockArgument arg) {
    return arg != counts && func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) &&
           (view.stage.empty() || getStage(arg) == view.stage);
  };
  auto getShape = [](Value value) { return cast<RankedTensorType>(value.getType()).getShape(); };
  nn::BatchRule rule;
  for (BlockArgument arg : func.getArguments())
    if (isOwn(arg))
      rule.add(getShape(arg), nn::getStatedBatch(func, arg.getArgNumber()));
  if (!axes.groups.empty())
    report(func, axes, rule.getSize());
  SmallVector<Attribute> attrs(func.getNumArguments());
  auto symbol = FlatSymbolRefAttr::get(meshOp);
  for (BlockArgument arg : func.getArguments()) {
    unsigned index = arg.getArgNumber();
    ArrayRef<FactorClasses> classes = factors.getClasses(arg);
    if (!isOwn(arg) || !rule.isBatch(getShape(arg), nn::getStatedBatch(func, index)) ||
        classes[0].empty())
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(classes);
    if (ShardingAttr stated = getShardingAttr(arg)) {
      auto read = readSharding(stated, arg, factors, meshOp.getMesh(),
                               [&] { return emitError(arg.getLoc()); });
      if (failed(read) || anyOverlap(read->getAxes(), axes.all))
        continue;
      sharding = *read;
    }
    llvm::append_range(sharding.dims[0][0], axes.groups);
    attrs[index] = writeSharding(sharding, arg, factors, meshOp.getMesh(), symbol);
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
}

LogicalResult AnnotateDpAttentionPass::annotate(func::FuncOp func, MeshOp meshOp,
                                                const StageMesh &view, const GroupAxes &axes,
                                                bool &rewritten) {
  FailureOr<FactorAnalysis> fresh = failure();
  if (rewritten && failed(fresh = FactorAnalysis::run(func)))
    return failure();
  auto &kept = getChildAnalysis<SharedFactorAnalysis>(func).factors;
  if (!rewritten && failed(kept))
    return failure();
  const FactorAnalysis &factors = rewritten ? *fresh : *kept;
  splitInputs(func, factors, meshOp, view, axes);
  WeightAxes weights = WeightAxes::get(axes.all);
  weights.attention = axes.ranks;
  if (chosen.denseTp == 1)
    weights.dense.clear();
  if (chosen.hasOwnHead)
    weights.head = axes.ranks;
  if (failed(annotateTensorParallel(func, factors, meshOp, weights, getFilter(view), rewritten)))
    return failure();
  return compactSharedTokens(func, meshOp, view, axes, rewritten);
}

/// Lets layers whose weights the groups share compute the true tokens alone, in a step that states their
/// most.
LogicalResult AnnotateDpAttentionPass::compactSharedTokens(func::FuncOp func, MeshOp meshOp,
                                                           const StageMesh &view, const GroupAxes &axes,
                                                           bool &rewritten) {
  if (!nn::getTokenSum(func))
    return success();
  FailureOr<FactorAnalysis> factors = FactorAnalysis::run(func);
  if (failed(factors))
    return failure();
  llvm::DenseSet<int> shared;
  WeightFinder weights(func);
  for (BlockArgument arg : func.getArguments()) {
    ShardingAttr stated = weights.find(arg) ? getShardingAttr(arg) : ShardingAttr();
    if (!stated)
      continue;
    auto sharding =
        readSharding(stated, arg, *factors, meshOp.getMesh(), [&] { return emitError(arg.getLoc()); });
    if (failed(sharding))
      return failure();
    for (auto [classes, dims] : llvm::zip_equal(factors->getClasses(arg), sharding->dims))
      for (auto [cls, own] : llvm::zip_equal(classes, dims))
        if (anyOverlap(own, axes.groups))
          shared.insert(cls);
  }
  // Rows of experts that have ranks of their own go there from each rank's tokens.
  for (Operation &op : func.getBody().front().without_terminator()) {
    auto routing = dyn_cast<LookupOpInterface>(op);
    if (!routing || !routing.skipsMinusOne())
      continue;
    for (const FactorClasses &classes : factors->getClasses(routing.getTable()).slice(routing.getTableDim(), 1))
      for (int cls : classes)
        shared.erase(cls);
  }
  int64_t replicas = getNumShards(RoleAxes(AxisRole::Data, data).get(meshOp, view));
  return compactTokens(func, *factors, [&](int cls) { return shared.contains(cls); }, replicas, rewritten);
}

void AnnotateDpAttentionPass::runOnOperation() {
  ModuleOp module = getOperation();
  auto only = getOnlyMesh(module);
  if (failed(only))
    return signalPassFailure();
  MeshOp meshOp = *only;
  RoleAxes role(AxisRole::Tensor, tensor);
  SmallVector<StageMesh> views = getStageMeshes(meshOp);
  int64_t ranks = 1;
  for (const StageMesh &view : views)
    ranks = std::max(ranks, getNumShards(role.get(meshOp, view)));
  FailureOr<int64_t> groupCount = chooseGroups(meshOp, ranks);
  if (failed(groupCount))
    return signalPassFailure();
  SmallVector<GroupAxes> axes;
  for (const StageMesh &view : views) {
    FailureOr<GroupAxes> own = splitAxes(meshOp, view, *groupCount);
    if (failed(own))
      return signalPassFailure();
    axes.push_back(*own);
  }
  if (failed(checkServing(meshOp, *groupCount)))
    return signalPassFailure();
  chosen = {*groupCount, denseTp.number.value_or(ranks), false};
  Head head;
  for (func::FuncOp func : getGlobalFunctions(module)) {
    auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
    if (failed(factors))
      return signalPassFailure();
    for (const StageMesh &view : views)
      Products(func, *factors, getFilter(view)).addHead(head);
  }
  chosen.hasOwnHead = choosesOwnHead(meshOp, axes.front(), head);
  setDpAttention(meshOp, chosen);
  bool rewritten = false;
  for (func::FuncOp func : getGlobalFunctions(module))
    for (auto [view, own] : llvm::zip_equal(views, axes))
      if (!own.all.empty() && failed(annotate(func, meshOp, view, own, rewritten)))
        return signalPassFailure();
  // Without expanded norms the pass changes attributes only.
  if (!rewritten)
    markAllAnalysesPreserved();
}

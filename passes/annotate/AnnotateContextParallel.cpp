//===- AnnotateContextParallel.cpp - attention over a sharded sequence ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Analysis/ShardingPropagation.h"
#include "meshwright/lib/Analysis/Stages.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATECONTEXTPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

class ContextParallelPolicy {
public:
  ContextParallelPolicy(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
                        AxisList ring, AxisList ulysses, const StageFilter &stages)
      : func(func), factors(factors), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), ring(std::move(ring)), ulysses(std::move(ulysses)),
        stages(stages) {}

  LogicalResult run();

private:
  bool isToken(int leaf) const { return tokens.count(leaf); }
  void findTokens();
  void placeTokens(const FactorAnalysis::Leaves &leaves);
  bool onlyMasks(Value value, llvm::SmallDenseSet<Value> &seen) const;
  LogicalResult annotateInputs();
  void annotateAttention(nn::AttentionOp op, const ShardingPropagation &shardings);
  /// Axes for the heads while attention runs, by leaf.
  llvm::SmallDenseMap<int, AxisList> placeHeads(nn::AttentionOp op,
                                                const ShardingPropagation &shardings) const;
  Value constrain(OpBuilder &builder, Value value, const ValueSharding &sharding) const;

  func::FuncOp func;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  /// At most one axis each; empty where it is not used.
  AxisList ring, ulysses;
  const StageFilter &stages;
  /// Factors of the sequences that self-attention mixes, and their axes. A sequence
  /// may be a product: frames, rows and columns.
  llvm::SmallDenseMap<int, AxisList> tokens;
  SmallVector<int64_t, 2> lengths;
};

void ContextParallelPolicy::findTokens() {
  func.walk([&](nn::AttentionOp op) {
    const FactorAnalysis::Leaves &queries = factors.getLeaves(op.getQuery())[2];
    const FactorAnalysis::Leaves &keys = factors.getLeaves(op.getKey())[2];
    bool isKnown = llvm::any_of(queries, [&](int leaf) { return isToken(leaf); });
    if (stages.contains(op) && !queries.empty() && queries == keys && !isKnown) {
      placeTokens(queries);
      lengths.push_back(op.getQuery().getType().getDimSize(2));
    }
  });
}

/// Gives the axes, major to minor, to the sequence's factors: each takes as much
/// as divides it, so that nothing is padded where the product divides.
void ContextParallelPolicy::placeTokens(const FactorAnalysis::Leaves &leaves) {
  AxisList rest = ring;
  rest.append(ulysses.begin(), ulysses.end());
  llvm::SmallDenseMap<int, AxisList> placed;
  for (int leaf : leaves) {
    int64_t shards = std::gcd(factors.getSize(leaf), getNumShards(rest));
    auto own = getPart(rest, 1, shards);
    auto behind = getPart(rest, shards, getNumShards(rest) / shards);
    // Of axes that do not split so nothing is taken here.
    if (!own || !behind)
      continue;
    placed[leaf] = *own;
    rest = *behind;
  }
  if (!rest.empty()) {
    // Padded, and then the largest factor is padded least.
    placed.clear();
    int largest = *llvm::max_element(
        leaves, [&](int a, int b) { return factors.getSize(a) < factors.getSize(b); });
    placed[largest] = ring;
    placed[largest].append(ulysses.begin(), ulysses.end());
  }
  for (int leaf : leaves)
    tokens[leaf] = placed.lookup(leaf);
}

/// Whether a value ends in masks of attention and nowhere else: every rank needs
/// all of it.
bool ContextParallelPolicy::onlyMasks(Value value, llvm::SmallDenseSet<Value> &seen) const {
  if (!seen.insert(value).second)
    return true;
  return !value.use_empty() && llvm::all_of(value.getUses(), [&](OpOperand &use) {
    Operation *user = use.getOwner();
    if (auto attention = dyn_cast<nn::AttentionOp>(user))
      return use.get() == attention.getKeyPadding() || use.get() == attention.getBias();
    return user->getNumResults() == 1 && onlyMasks(user->getResult(0), seen);
  });
}

LogicalResult ContextParallelPolicy::annotateInputs() {
  AxisList sequence = ring;
  sequence.append(ulysses.begin(), ulysses.end());
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments()) {
    if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr))
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(factors.getLeaves(arg));
    if (ShardingAttr attr = getShardingAttr(arg)) {
      auto given = readSharding(attr, arg, factors, mesh, [&] { return emitError(arg.getLoc()); });
      if (failed(given))
        return failure();
      sharding = std::move(*given);
    }
    llvm::SmallDenseSet<Value> seen;
    if (anyOverlap(sharding.getAxes(), sequence) || onlyMasks(arg, seen))
      continue;
    bool found = false;
    AxisList used = sharding.getAxes();
    for (auto [leaves, dim] : llvm::zip_equal(factors.getLeaves(arg), sharding.dims))
      for (auto [leaf, axes] : llvm::zip_equal(leaves, dim))
        if (isToken(leaf) && axes.empty() && !anyOverlap(used, tokens[leaf])) {
          axes = tokens[leaf];
          used.append(axes.begin(), axes.end());
          found |= !axes.empty();
        }
    if (found)
      attrs[arg.getArgNumber()] = writeSharding(sharding, arg, factors, mesh, symbol);
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
  return success();
}

/// Key/value heads take the axis as far as they go, the queries of a group the
/// rest: the key/value heads are then held by several ranks.
llvm::SmallDenseMap<int, AxisList>
ContextParallelPolicy::placeHeads(nn::AttentionOp op, const ShardingPropagation &shardings) const {
  llvm::SmallDenseMap<int, AxisList> placed;
  const ValueSharding &query = shardings.get(op.getQuery());
  ArrayRef<int> leaves = factors.getLeaves(op.getQuery())[1];
  for (auto [leaf, axes] : llvm::zip_equal(leaves, query.dims[1]))
    placed[leaf] = axes;
  if (ulysses.empty() || leaves.empty())
    return placed;
  const FactorAnalysis::Leaves &kvLeaves = factors.getLeaves(op.getKey())[1];
  int kv = kvLeaves.empty() ? -1 : kvLeaves.front();
  int group = -1;
  for (int leaf : leaves)
    if (leaf != kv && group < 0)
      group = leaf;
  Axis axis = ulysses.front();
  auto localSize = [&](int leaf) {
    int64_t shards = getNumShards(placed[leaf]);
    return (factors.getSize(leaf) + shards - 1) / shards;
  };
  int64_t heads = kv < 0 ? 1 : localSize(kv);
  if (group < 0 || (kv >= 0 && (heads >= axis.size || axis.size % heads != 0))) {
    placed[kv < 0 ? leaves.front() : kv].push_back(axis);
    return placed;
  }
  if (heads > 1)
    placed[kv].push_back({axis.axis, axis.pre, heads});
  if (axis.size > heads)
    placed[group].push_back({axis.axis, axis.pre * heads, axis.size / heads});
  return placed;
}

Value ContextParallelPolicy::constrain(OpBuilder &builder, Value value,
                                       const ValueSharding &sharding) const {
  return ConstrainOp::create(builder, value.getLoc(), value,
                             writeSharding(sharding, value, factors, mesh, symbol));
}

void ContextParallelPolicy::annotateAttention(nn::AttentionOp op,
                                              const ShardingPropagation &shardings) {
  if (llvm::none_of(factors.getLeaves(op.getQuery())[2], [&](int leaf) { return isToken(leaf); }))
    return;
  llvm::SmallDenseMap<int, AxisList> heads = placeHeads(op, shardings);
  OpBuilder builder(op);
  // While attention runs: heads over more ranks, the sequence over fewer.
  auto inside = [&](Value value) {
    ValueSharding sharding = shardings.get(value);
    for (auto [d, dim] : llvm::enumerate(sharding.dims))
      for (auto [leaf, axes] : llvm::zip_equal(factors.getLeaves(value)[d], dim)) {
        if (isToken(leaf))
          axes = llvm::to_vector_of<Axis, 2>(llvm::make_filter_range(
              tokens[leaf], [&](const Axis &axis) { return anyOverlap(axis, ring); }));
        else if (d == 1 && heads.count(leaf))
          axes = heads[leaf];
      }
    return sharding;
  };
  Value output = op.getResult();
  for (unsigned i = 0; i < 3; ++i)
    op->setOperand(i, constrain(builder, op->getOperand(i), inside(op->getOperand(i))));
  builder.setInsertionPointAfter(op);
  // Behind it: as the stream lies.
  ValueSharding outside = shardings.get(output);
  for (auto [d, dim] : llvm::enumerate(outside.dims))
    for (auto [leaf, axes] : llvm::zip_equal(factors.getLeaves(output)[d], dim))
      if (isToken(leaf))
        axes = tokens[leaf];
  Value whole = constrain(builder, output, outside);
  output.replaceAllUsesExcept(whole, whole.getDefiningOp());
  setShardingAttr(output, writeSharding(inside(output), output, factors, mesh, symbol));
}

LogicalResult ContextParallelPolicy::run() {
  findTokens();
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  if (tokens.empty()) {
    log.add("annotate-context-parallel", Outcome::Declined, func.getLoc(),
            "no self-attention over a sequence of more than one token");
    return success();
  }
  if (failed(annotateInputs()))
    return failure();
  auto shardings = ShardingPropagation::run(func, factors, mesh);
  if (failed(shardings))
    return failure();
  SmallVector<nn::AttentionOp> attentions;
  func.walk([&](nn::AttentionOp op) { attentions.push_back(op); });
  for (nn::AttentionOp op : attentions)
    annotateAttention(op, *shardings);
  for (int64_t length : lengths)
    log.add("annotate-context-parallel", Outcome::Applied, func.getLoc(),
            llvm::formatv("a sequence of {0} is sharded over {1} ranks (ring {2}, ulysses {3})",
                          length, getNumShards(ring) * getNumShards(ulysses), getNumShards(ring),
                          getNumShards(ulysses))
                .str());
  return success();
}

struct AnnotateContextParallelPass
    : meshwright::impl::AnnotateContextParallelPassBase<AnnotateContextParallelPass> {
  using AnnotateContextParallelPassBase::AnnotateContextParallelPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    auto find = [&](StringRef name, StringRef purpose, AxisList &axes) -> LogicalResult {
      if (name.empty())
        return success();
      int index = mesh.getAxisIndex(name);
      if (index < 0)
        return meshOp->emitOpError() << "has no axis \"" << name << "\" for " << purpose;
      if (int64_t size = mesh.getAxes()[index].getSize(); size > 1)
        axes.push_back({index, 1, size});
      return success();
    };
    AxisList ringAxes, ulyssesAxes;
    if (failed(find(ring, "ring attention", ringAxes)) ||
        failed(find(ulysses, "Ulysses attention", ulyssesAxes)))
      return signalPassFailure();
    if (ringAxes.empty() && ulyssesAxes.empty())
      return markAllAnalysesPreserved();
    if (!ringAxes.empty()) {
      meshOp->emitOpError() << "has a ring axis \"" << ring
                            << "\" of more than one rank: ring attention is not supported yet, "
                               "only Ulysses is";
      return signalPassFailure();
    }
    StageFilter stages;
    StringRef(exceptStages).split(stages.except, ',', -1, /*KeepEmpty=*/false);
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      ContextParallelPolicy policy(func, *factors, *meshOp, ringAxes, ulyssesAxes, stages);
      if (failed(policy.run()))
        return signalPassFailure();
    }
  }
};

} // namespace

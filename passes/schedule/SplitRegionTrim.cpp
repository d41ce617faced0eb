//===- SplitRegionTrim.cpp - the ops of a growth that run in chunks -------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/SplitRegionGrowth.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Chooses the ops of a growth that run in chunks: collectives, ops between them, and the
/// products next to them with the ops on the way. A collective waits for the product before
/// it, and the ops behind it for the product that follows, so these run in chunks too. Ops
/// further away stay whole.
class SplitRegionFinder::Trimmer {
public:
  Trimmer(const PlacementAnalysis &placement, const Growth &growth);
  /// The chosen ops, in program order.
  SmallVector<Operation *, 0> run();

private:
  struct Flags {
    /// A collective of the growth is before the op, or behind it.
    bool before = false, behind = false;
    /// A path without a product leads from the op to the ops between collectives
    /// (`leads`), or from those to the op (`trails`).
    bool leads = false, trails = false;
    /// A product is on such a path: at the op, or before it (`leads`) or behind it
    /// (`trails`).
    bool product = false;
    bool isTrailing() const { return before && !behind && trails; }
  };
  /// Calls `callback` for the producers of the operands with rows, within the growth.
  void forProducers(Operation *op, llvm::function_ref<void(Operation *)> callback) const;
  Flags &getFlags(Operation *op) { return flags.find(op)->second; }
  void findCollectives();
  void findPathsBefore();
  void findPathsBehind();
  /// Returns true if a value of the op can be neither cut nor joined: its rows are
  /// scattered, or it is attention over a part of the keys.
  bool touchesInner(Operation *op) const;

  const PlacementAnalysis &placement;
  const Growth &growth;
  /// The ops of the growth, in program order.
  SmallVector<Operation *, 0> order;
  ProgramMap<Operation *, Flags> flags;
};

SplitRegionFinder::Trimmer::Trimmer(const PlacementAnalysis &placement, const Growth &growth)
    : placement(placement), growth(growth) {
  for (auto &entry : growth.ops)
    order.push_back(entry.first);
  llvm::sort(order, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : order)
    flags[op] = {};
}

void SplitRegionFinder::Trimmer::forProducers(
    Operation *op, llvm::function_ref<void(Operation *)> callback) const {
  const ChunkOp &how = growth.ops.find(op)->second;
  for (auto [operand, token] : llvm::zip_equal(op->getOperands(), how.operands))
    if (Operation *producer = token ? operand.getDefiningOp() : nullptr)
      if (growth.ops.contains(producer))
        callback(producer);
}

void SplitRegionFinder::Trimmer::findCollectives() {
  for (Operation *op : order)
    forProducers(op, [&](Operation *producer) {
      getFlags(op).before |= getFlags(producer).before || communicates(producer);
    });
  for (Operation *op : llvm::reverse(order)) {
    const Flags own = getFlags(op);
    forProducers(op, [&](Operation *producer) {
      getFlags(producer).behind |= own.behind || communicates(op);
    });
  }
}

void SplitRegionFinder::Trimmer::findPathsBefore() {
  for (Operation *op : llvm::reverse(order)) {
    const Flags own = getFlags(op);
    if (communicates(op) || (own.leads && !own.before && !isHeavy(op)))
      forProducers(op, [&](Operation *producer) { getFlags(producer).leads = true; });
  }
  for (Operation *op : order) {
    Flags &own = getFlags(op);
    if (own.before || !own.leads)
      continue;
    own.product |= isHeavy(op);
    forProducers(op, [&](Operation *producer) { own.product |= getFlags(producer).product; });
  }
}

void SplitRegionFinder::Trimmer::findPathsBehind() {
  for (Operation *op : order) {
    Flags &own = getFlags(op);
    forProducers(op, [&](Operation *producer) {
      const Flags &theirs = getFlags(producer);
      own.trails |= communicates(producer) || (theirs.before && theirs.behind) ||
                    (theirs.trails && !isHeavy(producer));
    });
  }
  for (Operation *op : llvm::reverse(order)) {
    Flags &own = getFlags(op);
    if (!own.isTrailing())
      continue;
    own.product |= isHeavy(op);
    if (own.product)
      forProducers(op, [&](Operation *producer) {
        Flags &theirs = getFlags(producer);
        theirs.product |= theirs.isTrailing() && !isHeavy(producer);
      });
  }
}

bool SplitRegionFinder::Trimmer::touchesInner(Operation *op) const {
  auto isInner = [&](Value value, const TokenDim &token) {
    const Layout *layout = placement.lookup(value);
    return !token.axes.empty() || (layout && layout->getPartOfSource());
  };
  const ChunkOp &how = growth.ops.find(op)->second;
  for (auto [operand, token] : llvm::zip_equal(op->getOperands(), how.operands))
    if (token && isInner(operand, *token))
      return true;
  for (auto [result, token] : llvm::zip_equal(op->getResults(), how.results))
    if (isInner(result, token))
      return true;
  return false;
}

SmallVector<Operation *, 0> SplitRegionFinder::Trimmer::run() {
  findCollectives();
  findPathsBefore();
  findPathsBehind();
  llvm::erase_if(order, [&](Operation *op) {
    const Flags &own = getFlags(op);
    bool isNextToProduct =
        own.product && ((!own.before && own.leads) || (!own.behind && own.trails));
    bool isBetween = own.before && own.behind;
    return !(communicates(op) || isBetween || isNextToProduct || touchesInner(op));
  });
  return std::move(order);
}

bool SplitRegionFinder::trim(const Growth &growth, SplitRegion &region, std::string &reason) const {
  bool anyCollective = false, anyHeavy = false;
  for (Operation *op : Trimmer(placement, growth).run()) {
    anyCollective |= communicates(op);
    anyHeavy |= isHeavy(op);
    region.index[op] = region.ops.size();
    region.ops.push_back(growth.ops.find(op)->second);
  }
  if (!anyCollective || !anyHeavy) {
    reason = "no product of the same rows is next to it";
    return false;
  }
  return addValues(region, reason);
}

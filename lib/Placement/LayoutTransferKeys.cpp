//===- LayoutTransferKeys.cpp - attention over sharded keys ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over a chunk of the keys is a part of the whole. Its layout names the
// chunks that it covers and the attention that it is a part of, and parts merge. The
// gradients of queries, keys and values in the steps of a ring are such parts, and add up. That of
// a bias has a block of rows and columns in each step, which takes its place (see
// LayoutTransferPlace.cpp), or adds up where the bias broadcasts.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/RingSteps.h"
#include "meshwright/lib/Placement/RuleTransfer.h"
#include "meshwright/lib/Placement/ValueNumbers.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

static bool isPositions(Value value) { return bool(getSource(value).getDefiningOp<PositionsOp>()); }

/// The value before the permutes that moved it around the ring.
static Value getRingSource(Value value) {
  for (;;) {
    value = getSource(value);
    auto permute = value.getDefiningOp<PermuteOp>();
    if (!permute)
      return value;
    value = permute.getInputs()[cast<OpResult>(value).getResultNumber()];
  }
}

/// Hidden keys do not affect the result, so a permute may leave them out.
LogicalResult RuleTransfer::checkMissing(nn::ScoresOpInterface attention,
                                         const LayoutFactor *sharded,
                                         ArrayRef<llvm::SmallBitVector> needing) {
  for (unsigned i : {1u, 2u}) {
    const MissingChunks &missing = operands[i]->missing;
    if (!missing.isAny())
      continue;
    auto fails = [&](const llvm::SmallBitVector &ranks, const Twine &why) {
      return report(context,
                    "reads operand " + Twine(i) + " on ranks " + toString(ranks) + " of " +
                        toString(missing.axes, mesh) + ", which a permute left out: " + why,
                    i);
    };
    if (!sharded || sharded->axes != missing.axes)
      return fails(missing.ranks, "the keys are not sharded over these axes");
    if (!attention.getKvPositions() || !isPositions(attention.getKvPositions()))
      return fails(missing.ranks, "expected the keys' positions as an operand, to hide them");
    llvm::SmallBitVector read = missing.ranks;
    read &= needing[sharded->shift];
    if (read.any())
      return fails(read, "the mask needs them there");
  }
  return success();
}

std::optional<std::pair<int, int>> RuleTransfer::getRingFactors() const {
  if (!isa<nn::AttentionGradOp>(op))
    return std::nullopt;
  int queries = rule.operands[0][2].front(), keys = rule.operands[1][2].front();
  if (!anyOverlap(getAxes(queries), getAxes(keys)))
    return std::nullopt;
  return std::pair(queries, keys);
}

bool RuleTransfer::hasFactorInResult(unsigned result, int factor) const {
  for (auto [d, factors] : llvm::enumerate(rule.results[result]))
    if (llvm::is_contained(factors, factor))
      return getBroadcastAxes(result, d).empty();
  return false;
}

bool RuleTransfer::hasBlocks(unsigned result) const {
  std::optional<std::pair<int, int>> ring = getRingFactors();
  return ring && hasFactorInResult(result, ring->first) && hasFactorInResult(result, ring->second);
}

FailureOr<const LayoutFactor *> RuleTransfer::getShardedKeys(nn::ScoresOpInterface attention) {
  int queryFactor = rule.operands[0][2].front(), keyFactor = rule.operands[1][2].front();
  const LayoutFactor *sharded = nullptr;
  for (const LayoutFactor &piece : pieces[keyFactor]) {
    if (piece.axes.empty())
      continue;
    if (sharded)
      return LogicalResult(report(context,
                                  "has keys of which two factors are sharded, over " +
                                      toString(getAxes(keyFactor), mesh),
                                  1));
    sharded = &piece;
  }
  if (sharded && isa<nn::AttentionGradOp>(op) && op->hasAttr(nn::NnDialect::kWholeKeysAttr))
    return LogicalResult(report(
        context, "has nn.whole_keys, and keys sharded over " + toString(sharded->axes, mesh), 1));
  // Without a ring, the gradients of sharded keys are sums as the rule says.
  if (!sharded || (isa<nn::AttentionGradOp>(op) && !getRingFactors()))
    return nullptr;
  AxisList queryAxes = getAxes(queryFactor);
  std::string axes = toString(sharded->axes, mesh);
  // The heads and the batch must be sharded over other axes.
  for (auto [f, list] : llvm::enumerate(pieces))
    if (static_cast<int>(f) != keyFactor && static_cast<int>(f) != queryFactor &&
        anyOverlap(getAxes(f), sharded->axes))
      return LogicalResult(report(
          context, "axes " + axes + " shard the keys and another dimension than the queries'"));
  if (!queryAxes.empty() && anyOverlap(queryAxes, sharded->axes) && queryAxes != sharded->axes)
    return LogicalResult(report(context,
                                "has keys sharded over " + axes + " and queries over " +
                                    toString(queryAxes, mesh) + ", expected the same axes",
                                1));
  bool isPositional = MaskShape::of(attention).isPositional() || attention.getKvLengths();
  if (isPositional && !attention.getKvPositions())
    return LogicalResult(report(context,
                                "compares positions of keys that are sharded over " + axes +
                                    ", expected the positions as operands",
                                1));
  if (attention.getKvLength())
    return LogicalResult(report(
        context, "counts the keys that it sees, but they are sharded over " + axes, 1));
  return sharded;
}

static int64_t toWord(const void *pointer) { return reinterpret_cast<intptr_t>(pointer); }
static int64_t toWord(const APFloat &number) { return number.bitcastToAPInt().getZExtValue(); }
/// Minus one, the bits of a NaN, stands for no number.
static int64_t toWord(const std::optional<APFloat> &number) {
  return number ? toWord(*number) : -1;
}

LogicalResult RuleTransfer::coverKeys(nn::ScoresOpInterface attention) {
  FailureOr<const LayoutFactor *> found = getShardedKeys(attention);
  if (failed(found))
    return failure();
  const LayoutFactor *sharded = *found;
  if (!sharded)
    return checkMissing(attention, nullptr, {});
  int queryFactor = rule.operands[0][2].front(), keyFactor = rule.operands[1][2].front();
  AxisList queryAxes = getAxes(queryFactor);
  MaskShape mask = MaskShape::of(attention);
  // The positions of the queries are known if each rank has one chunk of one factor.
  const LayoutFactor *queries = nullptr;
  bool known = pieces[queryFactor].size() == 1 &&
               (queryAxes.empty() || queryAxes == sharded->axes) && pieces[keyFactor].size() == 1;
  if (known && mask.isPositional() && isPositions(attention.getQPositions()) &&
      isPositions(attention.getKvPositions()))
    queries = &pieces[queryFactor].front();
  KeyCover cover;
  cover.axes = sharded->axes;
  cover.adds = isa<nn::AttentionGradOp>(op);
  RanksOfSteps needing = getNeedingRanks(mask, queries, *sharded);
  if (failed(checkMissing(attention, sharded, needing)))
    return failure();
  cover.needed = getNeededSteps(needing);
  cover.merged.resize(cover.needed.size());
  cover.merged.set(sharded->shift);
  bool isPart = cover.needed.test(cover.merged), anyBlocks = false;
  for (unsigned i = 0; i < keys.size(); ++i)
    anyBlocks |= hasBlocks(i);
  if (!isPart && !anyBlocks)
    return success();
  // The layouts of a mask, a bias and positions say which chunk of the keys they belong to.
  // Positions of queries, and lengths, are the same in all steps.
  auto getPlaces = [](Value positions) {
    auto op = getPositions(positions);
    return op ? toWord(op.getFactor().getAsOpaquePointer()) : 0;
  };
  auto getNumber = [&](Value value) { return -1 - int64_t(context.numbers->get(value)); };
  auto getOperand = [&](Value operand) {
    int64_t places = getPlaces(operand);
    return operand && !places ? getNumber(operand) : places;
  };
  ValueNumbers::Words words = {
      getNumber(attention.getQuery()), getNumber(getRingSource(attention.getKey())),
      getNumber(getRingSource(attention.getValue())), mask.causal,
      mask.windowLeft.value_or(-1), mask.windowRight.value_or(-1), toWord(attention.getScale()),
      toWord(attention.getSoftCap()), bool(attention.getKeyPadding()), bool(attention.getBias()),
      getOperand(attention.getQPositions()), getPlaces(attention.getKvPositions()),
      getOperand(attention.getKvLengths()), getOperand(attention.getDropRows()),
      getOperand(attention.getSeed()), getOperand(attention.getStep()),
      toWord(attention.getDropout()), int64_t(attention.getStream().value_or(-1))};
  if (auto gradient = dyn_cast<nn::AttentionGradOp>(op))
    words.insert(words.end(), {getOperand(gradient.getLse()), getOperand(gradient.getDelta()),
                               getOperand(gradient.getCotangent())});
  cover.source = context.numbers->intern(words);
  if (!cover.adds && op->getNumResults() == 1)
    return report(context,
                  "sees a chunk of the keys, which are sharded over " +
                      toString(sharded->axes, mesh) +
                      ", and has no log-sum-exp by which to merge the others",
                  1);
  for (auto [i, own] : llvm::enumerate(keys)) {
    // A block is whole only at its place, even if no other is needed.
    if (!isPart && !hasBlocks(i))
      continue;
    own = cover;
    // Gradients of several operands do not add up.
    if (cover.adds)
      own.source = context.numbers->intern({int64_t(cover.source), int64_t(i)});
  }
  return success();
}

LogicalResult RuleTransfer::joinKeys(unsigned firstPart, unsigned secondPart) {
  bool merges = isa<nn::MergeAttentionOp>(op);
  if (merges)
    for (unsigned part : {firstPart, secondPart})
      if (!(operands[part]->keys == operands[part + 1]->keys))
        return report(context,
                      "operand " + Twine(part + 1) + " is not the log-sum-exp of operand " +
                          Twine(part) + ": they are over other chunks of the keys",
                      part + 1);
  const KeyCover &first = operands[firstPart]->keys, &second = operands[secondPart]->keys;
  if (!first.isPart() && !second.isPart())
    return success();
  if (first.isPart() != second.isPart()) {
    unsigned whole = first.isPart() ? secondPart : firstPart;
    return report(context,
                  merges ? "merges a part into operand " + Twine(whole) +
                               ", which is attention over all keys already"
                         : "adds gradients in steps of a ring to operand " + Twine(whole) +
                               ", which is no such part",
                  whole);
  }
  const char *verb = merges ? "merges " : "adds ";
  if (first.axes != second.axes || first.needed != second.needed || first.source != second.source)
    return report(context, Twine(verb) + "parts of different attentions", secondPart);
  if (first.merged.anyCommon(second.merged)) {
    llvm::SmallBitVector twice = first.merged;
    twice &= second.merged;
    return report(context,
                  Twine(verb) + (merges ? "chunk " : "step ") + Twine(twice.find_first()) +
                      (merges ? " of the keys along " : " of the ring along ") +
                      toString(first.axes, mesh) + " twice",
                  secondPart);
  }
  KeyCover joint = first;
  joint.merged |= second.merged;
  if (joint.needed.test(joint.merged))
    keys.assign(keys.size(), joint);
  return success();
}

//===- LayoutTransferKeys.cpp - attention over sharded keys ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over a chunk of the keys is a part of the whole. Its layout names the
// chunks that it covers and the attention that it is a part of, and parts merge.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/RingSteps.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

static bool isPositions(Value value) {
  return bool(rt::getSource(value).getDefiningOp<PositionsOp>());
}

/// The value before the permutes that moved it around the ring.
static Value getRingSource(Value value) {
  for (;;) {
    value = rt::getSource(value);
    auto permute = value.getDefiningOp<PermuteOp>();
    if (!permute)
      return value;
    value = permute.getInputs()[cast<OpResult>(value).getResultNumber()];
  }
}

/// Hidden keys do not affect the result, so a permute may leave them out.
LogicalResult RuleTransfer::checkMissing(nn::AttentionOp attention, const LayoutFactor *sharded,
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

LogicalResult RuleTransfer::coverKeys(nn::AttentionOp attention) {
  int queryFactor = rule.operands[0][2].front(), keyFactor = rule.operands[1][2].front();
  LayoutFactor *sharded = nullptr;
  for (LayoutFactor &piece : pieces[keyFactor]) {
    if (piece.axes.empty())
      continue;
    if (sharded)
      return report(context,
                    "has keys of which two factors are sharded, over " +
                        toString(getAxes(keyFactor), mesh),
                    1);
    sharded = &piece;
  }
  if (!sharded)
    return checkMissing(attention, nullptr, {});
  AxisList queryAxes = getAxes(queryFactor);
  // The heads and the batch must be sharded over other axes.
  for (auto [f, list] : llvm::enumerate(pieces))
    if (static_cast<int>(f) != keyFactor && static_cast<int>(f) != queryFactor &&
        anyOverlap(getAxes(f), sharded->axes))
      return report(context, "axes " + toString(sharded->axes, mesh) +
                                 " shard the keys and another dimension than the queries'");
  if (!queryAxes.empty() && anyOverlap(queryAxes, sharded->axes) && queryAxes != sharded->axes)
    return report(context,
                  "has keys sharded over " + toString(sharded->axes, mesh) + " and queries over " +
                      toString(queryAxes, mesh) + ", expected the same axes",
                  1);
  MaskShape mask = MaskShape::of(attention);
  if ((mask.isPositional() || attention.getKvLengths()) && !attention.getKvPositions())
    return report(context,
                  "compares positions of keys that are sharded over " +
                      toString(sharded->axes, mesh) + ", expected the positions as operands",
                  1);
  if (attention.getKvLength())
    return report(context,
                  "counts the keys that it sees, but they are sharded over " +
                      toString(sharded->axes, mesh),
                  1);
  // The positions of the queries are known if each rank has one chunk of one factor.
  const LayoutFactor *queries = nullptr;
  bool known = pieces[queryFactor].size() == 1 &&
               (queryAxes.empty() || queryAxes == sharded->axes) && pieces[keyFactor].size() == 1;
  if (known && mask.isPositional() && isPositions(attention.getQPositions()) &&
      isPositions(attention.getKvPositions()))
    queries = &pieces[queryFactor].front();
  keys.axes = sharded->axes;
  RanksOfSteps needing = getNeedingRanks(mask, queries, *sharded);
  if (failed(checkMissing(attention, sharded, needing)))
    return failure();
  keys.needed = getNeededSteps(needing);
  keys.merged.resize(keys.needed.size());
  keys.merged.set(sharded->shift);
  Value key = getRingSource(attention.getKey()), value = getRingSource(attention.getValue());
  // The layouts of a mask, a bias and positions say which chunk of the keys they belong to.
  // Positions of queries, and lengths, are the same in all steps.
  auto getPlaces = [](Value positions) -> const void * {
    auto op = getPositions(positions);
    return op ? op.getFactor().getAsOpaquePointer() : nullptr;
  };
  auto getOperand = [&](Value operand) -> const void * {
    if (!operand || getPlaces(operand))
      return getPlaces(operand);
    return rt::getSource(operand).getAsOpaquePointer();
  };
  keys.source = llvm::hash_combine(
      rt::getSource(attention.getQuery()).getAsOpaquePointer(), key.getAsOpaquePointer(),
      value.getAsOpaquePointer(), mask.causal, mask.windowLeft.value_or(-1),
      mask.windowRight.value_or(-1), attention.getScaleAttr().getAsOpaquePointer(),
      attention.getSoftCapAttr().getAsOpaquePointer(), bool(attention.getKeyPadding()),
      bool(attention.getBias()), getOperand(attention.getQPositions()),
      getPlaces(attention.getKvPositions()), getOperand(attention.getKvLengths()),
      getOperand(attention.getDropRows()), getOperand(attention.getSeed()),
      getOperand(attention.getStep()), attention.getDropoutAttr().getAsOpaquePointer(),
      attention.getStreamAttr().getAsOpaquePointer());
  if (!keys.needed.test(keys.merged)) {
    keys = KeyCover();
    return success();
  }
  if (!attention.getLse())
    return report(context,
                  "sees a chunk of the keys, which are sharded over " +
                      toString(sharded->axes, mesh) +
                      ", and has no log-sum-exp by which to merge the others",
                  1);
  return success();
}

LogicalResult RuleTransfer::mergeKeys(nn::MergeAttentionOp merge) {
  for (unsigned part : {0u, 2u})
    if (!(operands[part]->keys == operands[part + 1]->keys))
      return report(context,
                    "operand " + Twine(part + 1) + " is not the log-sum-exp of operand " +
                        Twine(part) + ": they are over other chunks of the keys",
                    part + 1);
  const KeyCover &first = operands[0]->keys, &second = operands[2]->keys;
  if (!first.isPart() && !second.isPart())
    return success();
  if (first.isPart() != second.isPart()) {
    unsigned whole = first.isPart() ? 2 : 0;
    return report(context,
                  "merges a part into operand " + Twine(whole) +
                      ", which is attention over all keys already",
                  whole);
  }
  if (first.axes != second.axes || first.needed != second.needed || first.source != second.source)
    return report(context, "merges parts of different attentions", 2);
  if (first.merged.anyCommon(second.merged)) {
    llvm::SmallBitVector twice = first.merged;
    twice &= second.merged;
    return report(context,
                  "merges chunk " + Twine(twice.find_first()) + " of the keys along " +
                      toString(first.axes, mesh) + " twice",
                  2);
  }
  keys = first;
  keys.merged |= second.merged;
  if (!keys.needed.test(keys.merged))
    keys = KeyCover();
  return success();
}

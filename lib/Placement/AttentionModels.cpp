//===- AttentionModels.cpp - attention over sharded keys ------------------===//
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
// Attention reads no key that is padding: a length, a mask or negative positions hide them.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Sizes.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Placement/RingSteps.h"
#include "meshwright/lib/Placement/RuleTransfer.h"
#include "meshwright/lib/Placement/ValueNumbers.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

/// Attention, and its gradients.
class ScoresTransfer : public RuleTransfer {
public:
  explicit ScoresTransfer(const TransferContext &context)
      : RuleTransfer(context), attention(cast<nn::ScoresOpInterface>(context.op)) {}

private:
  LogicalResult checkOrder() override;
  std::optional<std::pair<int, int>> getRingFactors() const override;
  /// Describes the part of the keys that attention over sharded keys covers.
  LogicalResult joinParts() override;
  LogicalResult checkOwnPadding() override;

  /// Returns true if the result has a block of rows and columns in a step of a ring.
  bool hasBlocks(unsigned result) const;
  /// The factor of the keys that is sharded around a ring; null if none is. Fails if the op reads
  /// its keys in a way that such keys do not allow.
  FailureOr<const LayoutFactor *> getShardedKeys();
  /// The number of the attention of which the op computes a part.
  size_t nameSource(const MaskShape &mask);
  /// Checks that the mask hides the keys and values that a permute left out. `sharded` is
  /// null if the keys are whole.
  LogicalResult checkMissing(const LayoutFactor *sharded, ArrayRef<llvm::SmallBitVector> needing);
  bool hidesPadding(Value positions, const LayoutFactor &piece) const;
  bool hidesBehindSize(const LayoutFactor &piece);

  nn::ScoresOpInterface attention;
};

/// Ops that join the parts of one attention.
class JoinTransfer : public RuleTransfer {
public:
  using RuleTransfer::RuleTransfer;

private:
  LogicalResult joinParts() override;
};

} // namespace

//===----------------------------------------------------------------------===//
// Sharded keys
//===----------------------------------------------------------------------===//

/// The op that defines positions; null if there is none. In a product of dimensions these
/// are the positions of one factor, repeated along the others.
static PositionsOp getPositions(Value positions) {
  while (positions) {
    Operation *source = rt::getSource(positions).getDefiningOp();
    if (auto op = dyn_cast_or_null<PositionsOp>(source))
      return op;
    if (!isa_and_nonnull<nn::ReshapeOp, nn::BroadcastOp>(source))
      break;
    positions = source->getOperand(0);
  }
  return {};
}

static bool isPositions(Value value) { return bool(getSource(value).getDefiningOp<PositionsOp>()); }

LogicalResult ScoresTransfer::checkOrder() {
  bool isPositional = attention.getKvLength() ||
                      (!attention.getKvPositions() &&
                       (attention.getKvLengths() || MaskShape::of(attention).isPositional()));
  return isPositional
             ? checkContiguousOrder("expected positions that follow the order, got layout ")
             : success();
}

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
LogicalResult ScoresTransfer::checkMissing(const LayoutFactor *sharded,
                                           ArrayRef<llvm::SmallBitVector> needing) {
  for (unsigned i : {1u, 2u}) {
    const Part *part = operands[i]->getIncompletePart();
    if (!part)
      continue;
    llvm::SmallBitVector missing = part->getMissing();
    auto fails = [&](const llvm::SmallBitVector &ranks, const Twine &why) {
      return report(context,
                    "reads operand " + Twine(i) + " on ranks " + toString(ranks) + " of " +
                        toString(part->axes, mesh) + ", which a permute left out: " + why,
                    i);
    };
    if (!sharded || sharded->axes != part->axes)
      return fails(missing, "the keys are not sharded over these axes");
    if (!attention.getKvPositions() || !isPositions(attention.getKvPositions()))
      return fails(missing, "expected the keys' positions as an operand, to hide them");
    llvm::SmallBitVector read = missing;
    read &= needing[sharded->shift];
    if (read.any())
      return fails(read, "the mask needs them there");
  }
  return success();
}

std::optional<std::pair<int, int>> ScoresTransfer::getRingFactors() const {
  if (!isa<nn::AttentionGradOp>(op))
    return std::nullopt;
  int queries = rule.operands[0][2].front(), keys = rule.operands[1][2].front();
  if (!anyOverlap(getAxes(queries), getAxes(keys)))
    return std::nullopt;
  return std::pair(queries, keys);
}

bool ScoresTransfer::hasBlocks(unsigned result) const {
  std::optional<std::pair<int, int>> ring = getRingFactors();
  return ring && hasFactorInResult(result, ring->first) && hasFactorInResult(result, ring->second);
}

FailureOr<const LayoutFactor *> ScoresTransfer::getShardedKeys() {
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
                                "expected keys and queries sharded over the same axes, got " +
                                    axes + " and " + toString(queryAxes, mesh),
                                1));
  bool isPositional = MaskShape::of(attention).isPositional() || attention.getKvLengths();
  if (isPositional && !attention.getKvPositions())
    return LogicalResult(report(context,
                                "compares positions of keys that are sharded over " + axes +
                                    ": expected the positions as operands",
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

size_t ScoresTransfer::nameSource(const MaskShape &mask) {
  // The layouts of a mask, a bias and positions say which chunk of the keys they belong to.
  // Positions of queries, and lengths, are the same in all steps.
  auto getFactorWord = [](Value positions) {
    auto op = getPositions(positions);
    return op ? toWord(op.getFactor().getAsOpaquePointer()) : 0;
  };
  auto getNumber = [&](Value value) { return -1 - int64_t(context.numbers->get(value)); };
  auto getOperand = [&](Value operand) {
    int64_t factor = getFactorWord(operand);
    return operand && !factor ? getNumber(operand) : factor;
  };
  ValueNumbers::Words words = {
      getNumber(attention.getQuery()), getNumber(getRingSource(attention.getKey())),
      getNumber(getRingSource(attention.getValue())), mask.causal,
      mask.windowLeft.value_or(-1), mask.windowRight.value_or(-1), toWord(attention.getScale()),
      toWord(attention.getSoftCap()), bool(attention.getKeyPadding()), bool(attention.getBias()),
      getOperand(attention.getQPositions()), getFactorWord(attention.getKvPositions()),
      getOperand(attention.getKvLengths()), getOperand(attention.getDropRows()),
      getOperand(attention.getSeed()), getOperand(attention.getStep()),
      toWord(attention.getDropout()), int64_t(attention.getStream().value_or(-1))};
  if (auto gradient = dyn_cast<nn::AttentionGradOp>(op))
    words.insert(words.end(), {getOperand(gradient.getLse()), getOperand(gradient.getDelta()),
                               getOperand(gradient.getCotangent())});
  return context.numbers->intern(words);
}

LogicalResult ScoresTransfer::joinParts() {
  FailureOr<const LayoutFactor *> found = getShardedKeys();
  if (failed(found))
    return failure();
  const LayoutFactor *sharded = *found;
  if (!sharded)
    return checkMissing(nullptr, {});
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
  bool isGradient = isa<nn::AttentionGradOp>(op);
  Part part;
  part.axes = sharded->axes;
  part.reduction = isGradient ? ReductionKind::Sum : ReductionKind::Merge;
  part.spread = Part::Spread::Steps;
  RanksOfSteps needing = getNeedingRanks(mask, queries, *sharded);
  if (failed(checkMissing(sharded, needing)))
    return failure();
  part.needed = getNeededSteps(needing);
  part.covered.resize(part.needed.size());
  part.covered.set(sharded->shift);
  bool isWhole = part.isWhole(), anyBlocks = false;
  for (unsigned i = 0; i < stepParts.size(); ++i)
    anyBlocks |= hasBlocks(i);
  if (isWhole && !anyBlocks)
    return success();
  part.source = nameSource(mask);
  if (!isGradient && op->getNumResults() == 1)
    return report(context,
                  "sees a chunk of the keys, which are sharded over " +
                      toString(sharded->axes, mesh) +
                      ", and has no log-sum-exp by which to merge the others",
                  1);
  for (auto [i, own] : llvm::enumerate(stepParts)) {
    // A block is whole only at its place, even if no other is needed.
    if (isWhole && !hasBlocks(i))
      continue;
    own = part;
    if (hasBlocks(i))
      own->reduction = ReductionKind::Place;
    // Gradients of several operands do not add up.
    if (isGradient)
      own->source = context.numbers->intern({int64_t(part.source), int64_t(i)});
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

/// A merge has a log-sum-exp behind each part. Gradients in the steps of a ring add up.
LogicalResult JoinTransfer::joinParts() {
  bool merges = isa<nn::MergeAttentionOp>(op);
  unsigned firstPart = 0, secondPart = merges ? 2 : 1;
  if (merges)
    for (unsigned part : {firstPart, secondPart})
      if (operands[part]->parts != operands[part + 1]->parts)
        return report(context,
                      "operand " + Twine(part + 1) + " is not the log-sum-exp of operand " +
                          Twine(part) + ": they are over other chunks of the keys",
                      part + 1);
  const Part *first = operands[firstPart]->getPartOfSource();
  const Part *second = operands[secondPart]->getPartOfSource();
  if (!first && !second)
    return success();
  if (!first || !second) {
    unsigned whole = first ? secondPart : firstPart;
    return report(context,
                  merges ? "merges a part into operand " + Twine(whole) +
                               ", which is attention over all keys already"
                         : "adds gradients in steps of a ring to operand " + Twine(whole) +
                               ", which is no such part",
                  whole);
  }
  const char *verb = merges ? "merges " : "adds ";
  if (!first->isOfSameWhole(*second))
    return report(context, Twine(verb) + "parts of different attentions", secondPart);
  if (std::optional<unsigned> twice = first->findCommonStep(*second))
    return report(context,
                  Twine(verb) + (merges ? "chunk " : "step ") + Twine(*twice) +
                      (merges ? " of the keys along " : " of the ring along ") +
                      toString(first->axes, mesh) + " twice",
                  secondPart);
  Part joint = *first;
  joint.unite(*second);
  if (!joint.isWhole())
    stepParts.assign(stepParts.size(), joint);
  return success();
}

//===----------------------------------------------------------------------===//
// Padding
//===----------------------------------------------------------------------===//

/// The positions by which a selection makes others negative in padding, `positions >= 0 ? x : -1`;
/// null for other values.
static Value getSelecting(Value positions) {
  auto select = positions ? rt::getSource(positions).getDefiningOp<nn::SelectOp>() : nullptr;
  auto compare =
      select ? rt::getSource(select.getCondition()).getDefiningOp<nn::CompareOp>() : nullptr;
  if (!compare || compare.getKind() != nn::CompareKind::Ge ||
      padding::getSplat(compare.getRhs()) != 0.0)
    return {};
  std::optional<double> hidden = padding::getSplat(select.getRhs());
  return hidden && *hidden < 0 ? compare.getLhs() : Value();
}

/// Returns true if positions are negative where the factor is padding.
bool ScoresTransfer::hidesPadding(Value positions, const LayoutFactor &piece) const {
  if (Value selecting = getSelecting(positions))
    positions = selecting;
  PositionsOp op = getPositions(positions);
  if (!op)
    return false;
  // Positions of rows are repeated along the elements of a row.
  LayoutFactor own = getFactor(op.getFactor(), mesh);
  int64_t repeats = own.size == 0 ? 1 : piece.size / own.size;
  return own.size * repeats == piece.size && own.padded * repeats == piece.padded &&
         own.axes == piece.axes && (!piece.runtimeSize || own.runtimeSize == piece.runtimeSize);
}

/// Returns true if lengths that count indices hide what is behind the run-time size.
bool ScoresTransfer::hidesBehindSize(const LayoutFactor &piece) {
  return piece.runtimeSize && !piece.isExtended() && piece.isContiguous() &&
         attention.getKvLengths() && !attention.getKvPositions() &&
         nn::isAtMostSize(attention.getKvLengths(), piece.runtimeSize.getAttr(), rt::getSource);
}

LogicalResult ScoresTransfer::checkOwnPadding() {
  if (!isa<nn::AttentionOp>(op))
    return success();
  int keys = rule.operands[1][2].front();
  for (const LayoutFactor &piece : pieces[keys]) {
    if (!piece.isPadded())
      continue;
    Tail tail{keys, &piece};
    std::optional<int64_t> length = attention.getKvLength();
    if (length && pieces[keys].size() == 1 && *length <= piece.size && !piece.runtimeSize)
      continue;
    // Nothing behind a length is read.
    if (pieces[keys].size() == 1 && hidesBehindSize(piece))
      continue;
    // No query sees a key of negative position, nor a key where a mask is false.
    bool isHidden = hidesPadding(attention.getKvPositions(), piece) ||
                    (attention.getKeyPadding() && padding::isZero(getContent(3, tail)));
    // Its value has weight zero, and zero times NaN is NaN.
    if (Padding values = padding::getUnconditional(getContent(2, tail));
        isHidden && !padding::isFinite(values))
      return readsPadding(tail, values, "expected finite values");
    if (isHidden)
      continue;
    if (length)
      return report(context,
                    "counts padding as keys: expected a kv_length of at most the " +
                        Twine(piece.size) + " true keys, got " + Twine(*length),
                    1);
    return readsPadding(tail, getContent(1, tail), "as keys: expected kv_length to mask it");
  }
  return checkProduct(rule.operands[1][3].front(), 0, 1);
}

//===----------------------------------------------------------------------===//
// Models
//===----------------------------------------------------------------------===//

namespace {

template <typename OpT>
struct ScoresModel : LayoutOpInterface::ExternalModel<ScoresModel<OpT>, OpT> {
  MaybeLayouts transfer(Operation *, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    return ScoresTransfer(context).run();
  }
  /// A bias has a block of rows and columns in each step of a ring. The mask hides keys and values
  /// that a permute left out.
  bool takesPart(Operation *op, const TransferContext &context, unsigned operand,
                 const Part &part) const {
    if (part.isIncomplete())
      return operand == 1 || operand == 2;
    if (part.isBlock() && !part.hasSource())
      return cast<OpT>(op).getBias() == op->getOperand(operand);
    return takesPartByRule(context, operand, part);
  }
};

template <typename OpT, bool merges>
struct JoinModel : LayoutOpInterface::ExternalModel<JoinModel<OpT, merges>, OpT> {
  MaybeLayouts transfer(Operation *, const TransferContext &context,
                        SmallVectorImpl<Layout> *) const {
    return JoinTransfer(context).run();
  }
  bool takesPart(Operation *, const TransferContext &context, unsigned operand,
                 const Part &part) const {
    return part.hasSource() ? (part.reduction == ReductionKind::Merge) == merges
                            : takesPartByRule(context, operand, part);
  }
};

} // namespace

void layout_transfer::attachAttentionModels(MLIRContext *context) {
  nn::AttentionOp::attachInterface<ScoresModel<nn::AttentionOp>>(*context);
  nn::AttentionGradOp::attachInterface<ScoresModel<nn::AttentionGradOp>>(*context);
  nn::MergeAttentionOp::attachInterface<JoinModel<nn::MergeAttentionOp, true>>(*context);
  nn::AddOp::attachInterface<JoinModel<nn::AddOp, false>>(*context);
}

//===- RingAttention.cpp - attention in steps around a ring ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over keys that a constraint keeps sharded runs in steps around a ring.
//
// 1. `assignRing` and `use` bring the operands to their layouts.
// 2. `ChunkWriter::prepare` pads and orders masks and biases as the keys.
// 3. `writeSteps` computes attention over one chunk of the keys in each step, moves keys and
//    values to the next rank, and merges the parts by their log-sum-exps.
//
// A step that the mask leaves empty on all ranks is left out. In other steps, a rank that
// neither reads its chunk nor passes it on receives none.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/lib/Placement/RingSteps.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

AxisList Partitioner::getRingAxes(nn::AttentionOp op) const {
  // A constraint asks for a ring. Keys that are sharded without one are gathered.
  if (!op.getKey().getDefiningOp<ConstrainOp>())
    return {};
  AxisList axes;
  for (const AxisList &leaf : getState(op.getKey()).target.dims[2])
    axes.append(leaf.begin(), leaf.end());
  return axes;
}

namespace {

/// The dimension of the keys. One leaf of it is sharded around the ring.
struct KeyDim {
  /// The sharded leaf.
  LayoutFactor factor;
  /// The numbers of elements of the leaves above and below it.
  int64_t above = 1, below = 1;

  int64_t getLocalSize() const { return above * factor.getLocalSize() * below; }
};

/// Writes the parts of masks, biases and positions that belong to a chunk of the keys.
class ChunkWriter {
public:
  ChunkWriter(OpBuilder &builder, Location loc, MeshAttr mesh, const KeyDim &keys)
      : builder(builder), loc(loc), mesh(mesh), keys(keys) {}

  /// Pads a value that has all keys in dimension `dim`, and puts it in the order of the keys,
  /// as `cut` needs it.
  Value prepare(Value whole, int64_t dim);
  /// The part of a prepared value that belongs to the chunk with that shift.
  Value cut(Value prepared, int64_t dim, int64_t shift);
  /// The positions of a chunk's keys. They are negative in padding.
  Value getPositions(int64_t shift);

private:
  Value reshape(Value value, ArrayRef<int64_t> shape) {
    auto type = cast<RankedTensorType>(value.getType());
    return type.getShape() == shape
               ? value
               : nn::ReshapeOp::create(builder, loc, type.clone(shape), value).getResult();
  }

  OpBuilder &builder;
  Location loc;
  MeshAttr mesh;
  const KeyDim &keys;
};

} // namespace

Value ChunkWriter::prepare(Value whole, int64_t dim) {
  auto type = cast<RankedTensorType>(whole.getType());
  // Make the leaf a dimension of its own, after the leaves above it.
  SmallVector<int64_t> shape(type.getShape());
  if (keys.above * keys.below > 1) {
    shape[dim] = keys.above;
    shape.insert(shape.begin() + dim + 1, {keys.factor.size, keys.below});
    whole = reshape(whole, shape);
    ++dim;
  }
  if (keys.factor.isPadded()) {
    shape[dim] = keys.factor.padded;
    whole =
        PadOp::create(builder, loc, type.clone(shape), whole, builder.getDenseI64ArrayAttr({dim}));
  }
  if (keys.factor.order == TokenOrder::Natural)
    return whole;
  LayoutFactor to = keys.factor;
  to.axes.clear();
  LayoutFactor from = to;
  from.order = TokenOrder::Natural;
  from.orderRanks = 1;
  return ReorderOp::create(builder, loc, whole.getType(), whole, builder.getI64IntegerAttr(dim),
                           getFactorAttr(from, mesh), getFactorAttr(to, mesh));
}

Value ChunkWriter::cut(Value prepared, int64_t dim, int64_t shift) {
  auto type = cast<RankedTensorType>(prepared.getType());
  bool split = keys.above * keys.below > 1;
  SmallVector<int64_t> shape(type.getShape());
  shape[dim + split] = keys.factor.getLocalSize();
  Value chunk = dist::SliceOp::create(builder, loc, TypeRange{type.clone(shape)}, prepared,
                                      getAxesAttr(builder.getContext(), keys.factor.axes, mesh),
                                      builder.getDenseI64ArrayAttr({dim + split}),
                                      builder.getI64IntegerAttr(shift))
                    .getResult(0);
  if (!split)
    return chunk;
  shape[dim] = keys.getLocalSize();
  shape.erase(shape.begin() + dim + 1, shape.begin() + dim + 3);
  return reshape(chunk, shape);
}

Value ChunkWriter::getPositions(int64_t shift) {
  auto type = RankedTensorType::get({keys.factor.getLocalSize()}, builder.getI64Type());
  Value own = PositionsOp::create(builder, loc, type, getFactorAttr(keys.factor, mesh),
                                  builder.getI64IntegerAttr(shift));
  if (keys.above * keys.below == 1)
    return own;
  // In a product only the sign is used (see partitionRing).
  Value wide = nn::BroadcastOp::create(
      builder, loc, type.clone({keys.above, keys.factor.getLocalSize(), keys.below}),
      reshape(own, {1, keys.factor.getLocalSize(), 1}));
  return reshape(wide, {keys.getLocalSize()});
}

/// The `shift` or `pairs` of a permute that moves chunks by `distance` to the ranks `to`.
static std::pair<IntegerAttr, DenseI64ArrayAttr> getMove(OpBuilder &builder, int64_t distance,
                                                         const llvm::SmallBitVector &to) {
  if (to.all())
    return {builder.getI64IntegerAttr(distance), nullptr};
  int64_t size = to.size();
  SmallVector<int64_t> pairs;
  for (int64_t rank : to.set_bits())
    pairs.append({(rank + size - distance) % size, rank});
  return {nullptr, builder.getDenseI64ArrayAttr(pairs)};
}

/// The part of a key padding mask that shows the first `length` of `count` keys, with
/// `keyPadding` if there is one.
static Value limitKeys(OpBuilder &builder, Location loc, int64_t length, int64_t count,
                       int64_t batch, Value keyPadding) {
  // The limit is the same for the whole batch, of which a rank may have a part.
  SmallVector<bool> seen;
  for (int64_t j = 0; j < count; ++j)
    seen.push_back(j < length);
  auto type = RankedTensorType::get({1, count}, builder.getI1Type());
  Value limit = nn::ConstantOp::create(builder, loc, DenseElementsAttr::get(type, seen));
  auto wide = type.clone({batch, count});
  return keyPadding ? Value(nn::AndOp::create(builder, loc, wide, keyPadding, limit))
                    : Value(nn::BroadcastOp::create(builder, loc, wide, limit));
}

namespace {

/// The local operands of all steps of a ring; absent ones are null.
struct StepOperands {
  Value query, key, value, keyPadding, bias, queryPositions;
  /// The dimension of the keys in the bias, and whether the bias has one.
  int64_t biasDim = 0;
  bool cutsBias = false;
  bool needsPositions = false;
};

} // namespace

/// Writes attention over the chunk of each needed step, with the moves between them, and
/// merges the parts. Returns the result of type `type`, and its log-sum-exp or null.
static std::pair<Value, Value> writeSteps(OpBuilder &builder, nn::AttentionOp op, ArrayAttr axes,
                                          ChunkWriter &chunks, StepOperands operands,
                                          RankedTensorType type, const RanksOfSteps &needing,
                                          const RanksOfSteps &holding) {
  Location loc = op.getLoc();
  Type element = type.getElementType();
  // A bias may hide keys by a huge number. The log-sum-exp has to tell the number of keys
  // beside it.
  bool isWide = element.isF64() || operands.bias;
  auto lseType = RankedTensorType::get(
      type.getShape().drop_back(),
      isWide ? Type(builder.getF64Type()) : Type(builder.getF32Type()));
  llvm::SmallBitVector needed = getNeededSteps(needing);
  if (op.getLse())
    lseType = lseType.clone(getElementTypeOrSelf(op.getLse().getType()));
  bool merges = needed.count() > 1 || op.getLse();
  int64_t shift = 0;
  Value out, lse;
  for (unsigned step : needed.set_bits()) {
    if (int64_t(step) != shift) {
      Value both[] = {operands.key, operands.value};
      auto [distance, pairs] = getMove(builder, step - shift, holding[step]);
      auto moved = PermuteOp::create(builder, loc,
                                     TypeRange{operands.key.getType(), operands.value.getType()},
                                     both, axes, distance, pairs);
      operands.key = moved.getResult(0);
      operands.value = moved.getResult(1);
      shift = step;
    }
    auto part = nn::AttentionOp::create(
        builder, loc, type, merges ? lseType : Type(), operands.query, operands.key, operands.value,
        operands.keyPadding ? chunks.cut(operands.keyPadding, 1, shift) : Value(),
        operands.cutsBias ? chunks.cut(operands.bias, operands.biasDim, shift) : operands.bias,
        operands.queryPositions, operands.needsPositions ? chunks.getPositions(shift) : Value(),
        op.getScaleAttr(), op.getCausalAttr(), op.getWindowLeftAttr(), op.getWindowRightAttr(),
        nullptr, op.getSoftCapAttr());
    if (!out) {
      out = part.getResult();
      lse = part.getLse();
      continue;
    }
    auto merged = nn::MergeAttentionOp::create(builder, loc, type, lseType, out, lse,
                                               part.getResult(), part.getLse());
    out = merged.getResult();
    lse = merged.getLse();
  }
  return {out, lse};
}

/// The positions of the rows of `query`, which are sharded as `queries`; zeros where it is null.
static Value makeQueryPositions(OpBuilder &builder, Location loc, MeshAttr mesh, Value query,
                                const LayoutFactor *queries) {
  int64_t rows = cast<RankedTensorType>(query.getType()).getDimSize(2);
  auto type = RankedTensorType::get({rows}, builder.getI64Type());
  auto zero = builder.getI64IntegerAttr(0);
  if (queries)
    return PositionsOp::create(builder, loc, type, getFactorAttr(*queries, mesh), zero);
  return nn::ConstantOp::create(builder, loc, DenseElementsAttr::get(type, zero));
}

/// Zeroes the padding of values of attention that may not be finite: a hidden key has
/// weight zero, and zero times NaN is NaN.
FailureOr<Value> Partitioner::maskValues(Value value, Location loc) {
  const Layout *layout = derive(value);
  if (!layout)
    return failure();
  auto isNumber = [](const LayoutFactor &f) {
    return !f.isPadded() || padding::isFinite(padding::getUnconditional(f.padding));
  };
  if (llvm::all_of(layout->dims[2].factors, isNumber))
    return value;
  return mask(value, Layout(*layout), 2, loc);
}

/// Assigns axes for attention in steps. Queries keep their constrained axes, and no other
/// factor takes the axes of the ring.
LogicalResult Partitioner::assignRing(nn::AttentionOp op, const AxisList &axes,
                                      Assignment &assignment, AxisList &queryAxes) {
  assignment = assign(op);
  for (auto &leaves : assignment)
    for (AxisList &leaf : leaves)
      if (anyOverlap(leaf, axes))
        leaf.clear();
  int queryFactor = factors.getFactors(op).rule.operands[0][2].front();
  for (auto [own, given] :
       llvm::zip(assignment[queryFactor], getState(op.getQuery()).target.dims[2])) {
    own = given;
    queryAxes.append(given.begin(), given.end());
  }
  if (anyOverlap(queryAxes, axes) && queryAxes != axes)
    return op.emitOpError() << "has keys sharded over " << toString(axes, mesh)
                            << " and queries over " << toString(queryAxes, mesh)
                            << ", expected the same axes";
  return success();
}

LogicalResult Partitioner::partitionRing(nn::AttentionOp op, const AxisList &axes) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  const FactorRule &rule = opFactors.rule;
  int queryFactor = rule.operands[0][2].front(), keyFactor = rule.operands[1][2].front();
  Location loc = op.getLoc();

  Assignment assignment;
  AxisList queryAxes;
  if (failed(assignRing(op, axes, assignment, queryAxes)))
    return failure();
  auto whole = assignment;
  KeyDim keys;
  bool found = false;
  for (auto [i, leaf] : llvm::enumerate(opFactors.leaves[keyFactor])) {
    const AxisList &own = getState(op.getKey()).target.dims[2][i];
    assignment[keyFactor][i] = own;
    whole[keyFactor][i].clear();
    if (own.empty()) {
      (found ? keys.below : keys.above) *= factors.getSize(leaf);
      continue;
    }
    if (found)
      return op.emitOpError() << "has keys of which two factors are sharded, over "
                              << toString(axes, mesh) << ": a ring moves chunks of one";
    found = true;
    keys.factor = factors.getFactor(leaf, own, padded[leaf]);
  }
  MaskShape mask = MaskShape::of(op);
  bool isProduct = opFactors.leaves[keyFactor].size() != 1;
  const FactorAnalysis::Leaves &queryLeaves = opFactors.leaves[queryFactor];
  if (mask.isPositional() && (isProduct || queryLeaves.size() > 1))
    return op.emitOpError() << "compares positions in a sequence that is a product of dimensions: "
                               "a ring is supported for masks without positions there";

  auto useAs = [&](unsigned i, const Assignment &how) {
    return use(op->getOperand(i), project(op->getOperand(i), rule.operands[i], opFactors, how),
               loc);
  };
  auto query = useAs(0, assignment), key = useAs(1, assignment), value = useAs(2, assignment);
  if (failed(query) || failed(key) || failed(value))
    return failure();
  if (keys.factor.isPadded() && failed(value = maskValues(*value, loc)))
    return failure();

  ChunkWriter chunks(builder, loc, mesh, keys);
  unsigned next = 3;
  auto useWhole = [&](Value operand) -> FailureOr<Value> {
    return operand ? useAs(next++, whole) : FailureOr<Value>(Value());
  };
  auto keyPadding = useWhole(op.getKeyPadding()), bias = useWhole(op.getBias());
  if (failed(keyPadding) || failed(bias))
    return failure();
  if (op.getQPositions())
    return op.emitOpError("has positions of its own, which a ring would replace");
  if (std::optional<int64_t> length = op.getKvLength()) {
    int64_t count = op.getKey().getType().getDimSize(2);
    int64_t batch = cast<RankedTensorType>(query->getType()).getDimSize(0);
    keyPadding = limitKeys(builder, loc, *length, count, batch, *keyPadding);
  }
  if (*keyPadding)
    keyPadding = chunks.prepare(*keyPadding, 1);
  StepOperands operands{*query, *key, *value, *keyPadding, *bias, {}};
  if (*bias)
    operands.biasDim = cast<RankedTensorType>(bias->getType()).getRank() - 1;
  operands.cutsBias = *bias && op.getBias().getType().getShape().back() != 1;
  if (operands.cutsBias)
    operands.bias = chunks.prepare(*bias, operands.biasDim);

  // Positions decide which keys the mask hides, and which keys are padding.
  LayoutFactor queries;
  if (queryLeaves.size() == 1)
    queries = factors.getFactor(queryLeaves[0], queryAxes, padded[queryLeaves[0]]);
  operands.needsPositions = mask.isPositional() || keys.factor.isPadded();
  if (operands.needsPositions)
    operands.queryPositions =
        makeQueryPositions(builder, loc, mesh, *query, mask.isPositional() ? &queries : nullptr);

  Value result = op.getResult();
  ValueSharding sharding = project(result, rule.results[0], opFactors, assignment);
  RankedTensorType type = getLocalType(result, sharding);
  RanksOfSteps needing =
      getNeedingRanks(mask, mask.isPositional() ? &queries : nullptr, keys.factor);
  RanksOfSteps holding = getHoldingRanks(needing);
  // In a product positions do not show which keys a rank lacks.
  if (isProduct)
    for (llvm::SmallBitVector &ranks : holding)
      ranks.set();
  auto [out, lse] = writeSteps(builder, op, getAxesAttr(builder.getContext(), axes, mesh), chunks,
                               operands, type, needing, holding);
  if (Attribute id = op->getAttr(nn::NnDialect::kIdAttr))
    out.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  if (failed(define(result, {out, sharding, {}})))
    return failure();
  if (!op.getLse())
    return success();
  return define(op.getLse(),
                {lse, project(op.getLse(), rule.results[1], opFactors, assignment), {}});
}

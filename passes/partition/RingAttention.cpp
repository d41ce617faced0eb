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
  /// The part of prepared positions that belongs to the chunk. They are negative in padding.
  Value cutPositions(Value prepared, int64_t shift);

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

Value ChunkWriter::cutPositions(Value prepared, int64_t shift) {
  Value own = cut(prepared, cast<RankedTensorType>(prepared.getType()).getRank() - 1, shift);
  if (!keys.factor.isPadded())
    return own;
  Value places = getPositions(shift);
  auto scalar = [&](int64_t value) -> Value {
    auto type = RankedTensorType::get({}, builder.getI64Type());
    return nn::ConstantOp::create(
        builder, loc, DenseElementsAttr::get(type, builder.getI64IntegerAttr(value)));
  };
  auto type = cast<RankedTensorType>(places.getType()).clone(builder.getI1Type());
  Value isKey =
      nn::CompareOp::create(builder, loc, type, nn::CompareKind::Ge, places, scalar(0));
  return nn::SelectOp::create(builder, loc, own.getType(), isKey, own, scalar(-1));
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

/// A key padding mask [batch, keys] that shows the keys that `limit` and `keyPadding` show; the
/// latter may be null.
static Value limitKeys(OpBuilder &builder, Location loc, Value limit, int64_t batch,
                       Value keyPadding) {
  auto type = cast<RankedTensorType>(limit.getType());
  auto wide = type.clone({batch, type.getDimSize(1)});
  return keyPadding ? Value(nn::AndOp::create(builder, loc, wide, keyPadding, limit))
                    : Value(nn::BroadcastOp::create(builder, loc, wide, limit));
}

/// Shows the first `length` of `count` keys, in all rows of the batch.
static Value showFirst(OpBuilder &builder, Location loc, int64_t length, int64_t count) {
  SmallVector<bool> seen;
  for (int64_t j = 0; j < count; ++j)
    seen.push_back(j < length);
  auto type = RankedTensorType::get({1, count}, builder.getI1Type());
  return nn::ConstantOp::create(builder, loc, DenseElementsAttr::get(type, seen));
}

/// Shows the first of `count` keys, as many as `lengths` says for each row of the batch.
static Value showLengths(OpBuilder &builder, Location loc, Value lengths, int64_t count) {
  auto type = cast<RankedTensorType>(lengths.getType());
  int64_t batch = type.getDimSize(0);
  Value rows = nn::ReshapeOp::create(builder, loc, type.clone({batch, 1}), lengths);
  Value keys =
      nn::IotaOp::create(builder, loc, type.clone({1, count}), builder.getI64IntegerAttr(1));
  auto seen = RankedTensorType::get({batch, count}, builder.getI1Type());
  return nn::CompareOp::create(builder, loc, seen, nn::CompareKind::Lt, keys, rows);
}

namespace {

/// The local operands of all steps of a ring; absent ones are null.
struct StepOperands {
  Value query, key, value, keyPadding, bias, queryPositions;
  /// Positions of the keys that the program gives. Otherwise they are those of the chunk, if
  /// queries have positions.
  Value keyPositions, lengths;
  /// Of dropout: the terms of indices of all keys, for `cut`.
  Value dropRows, dropKeys, seed, step;
  /// The dimension of the keys in the bias, and whether the bias has one.
  int64_t biasDim = 0;
  bool cutsBias = false;
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
  auto getKeyPositions = [&]() -> Value {
    if (Value whole = operands.keyPositions)
      return chunks.cutPositions(whole, shift);
    return operands.queryPositions ? chunks.getPositions(shift) : Value();
  };
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
        operands.queryPositions, getKeyPositions(), operands.lengths, operands.dropRows,
        operands.dropKeys ? chunks.cut(operands.dropKeys, 0, shift) : Value(), operands.seed,
        operands.step, op.getScaleAttr(), op.getCausalAttr(), op.getWindowLeftAttr(),
        op.getWindowRightAttr(), nullptr, op.getSoftCapAttr(), op.getDropoutAttr(),
        op.getStreamAttr());
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

/// Adds what hides keys in each step, and what drops weights, from the local operands behind query, key and value.
/// `queries` is the factor of the queries if the mask compares indices, else null.
static void addMasks(OpBuilder &builder, nn::AttentionOp op, MeshAttr mesh, const KeyDim &keys,
                     const LayoutFactor *queries, ChunkWriter &chunks, ArrayRef<Value> masks,
                     StepOperands &operands) {
  Location loc = op.getLoc();
  auto take = [&](Value operand) {
    Value local = operand ? masks.front() : Value();
    masks = masks.drop_front(bool(operand));
    return local;
  };
  Value keyPadding = take(op.getKeyPadding()), bias = take(op.getBias());
  Value queryPositions = take(op.getQPositions()), keyPositions = take(op.getKvPositions());
  Value lengths = take(op.getKvLengths());
  operands.dropRows = take(op.getDropRows());
  if (Value dropKeys = take(op.getDropKeys()))
    operands.dropKeys = chunks.prepare(dropKeys, 0);
  operands.seed = take(op.getSeed());
  operands.step = take(op.getStep());

  int64_t count = op.getKey().getType().getDimSize(2);
  int64_t batch = cast<RankedTensorType>(operands.query.getType()).getDimSize(0);
  if (std::optional<int64_t> length = op.getKvLength())
    keyPadding =
        limitKeys(builder, loc, showFirst(builder, loc, *length, count), batch, keyPadding);
  // In a product only the sign of positions is used.
  if (lengths && !keyPositions && keys.above * keys.below > 1) {
    keyPadding =
        limitKeys(builder, loc, showLengths(builder, loc, lengths, count), batch, keyPadding);
    lengths = {};
  }
  if (keyPadding)
    operands.keyPadding = chunks.prepare(keyPadding, 1);
  operands.bias = bias;
  if (bias) {
    operands.biasDim = cast<RankedTensorType>(bias.getType()).getRank() - 1;
    operands.cutsBias = op.getBias().getType().getShape().back() != 1;
  }
  if (operands.cutsBias)
    operands.bias = chunks.prepare(bias, operands.biasDim);

  // Positions decide which keys the mask hides, and which keys are padding.
  operands.queryPositions = queryPositions;
  operands.lengths = lengths;
  if (keyPositions)
    operands.keyPositions =
        chunks.prepare(keyPositions, cast<RankedTensorType>(keyPositions.getType()).getRank() - 1);
  else if (queries || lengths || keys.factor.isPadded())
    operands.queryPositions = makeQueryPositions(builder, loc, mesh, operands.query, queries);
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
  return mask(value, *layout, 2, loc);
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
  // Positions that the program gives are known at run time.
  bool comparesIndices = mask.isPositional() && !op.getKvPositions();
  if (comparesIndices && (isProduct || queryLeaves.size() > 1))
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
  SmallVector<Value, 5> masks;
  for (unsigned i = 3; i < op->getNumOperands(); ++i) {
    auto local = useAs(i, whole);
    if (failed(local))
      return failure();
    masks.push_back(*local);
  }
  LayoutFactor queries;
  if (queryLeaves.size() == 1)
    queries = factors.getFactor(queryLeaves[0], queryAxes, padded[queryLeaves[0]]);
  const LayoutFactor *compared = comparesIndices ? &queries : nullptr;
  StepOperands operands{*query, *key, *value, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  addMasks(builder, op, mesh, keys, compared, chunks, masks, operands);

  Value result = op.getResult();
  ValueSharding sharding = project(result, rule.results[0], opFactors, assignment);
  RankedTensorType type = getLocalType(result, sharding);
  RanksOfSteps needing = getNeedingRanks(mask, compared, keys.factor);
  RanksOfSteps holding = getHoldingRanks(needing);
  // Positions of a product, and positions that the program gives, do not show which keys a
  // rank lacks.
  if (isProduct || op.getKvPositions())
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

//===- RingChunks.cpp - chunks of keys in the steps of a ring -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Masks, biases and positions are padded and ordered as the keys once, and cut in each step. The
// gradient of a bias has a block of columns in each step, and these are joined in the end.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/RingChunks.h"

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

Value ChunkWriter::reshape(Value value, ArrayRef<int64_t> shape) {
  auto type = cast<RankedTensorType>(value.getType());
  return type.getShape() == shape
             ? value
             : nn::ReshapeOp::create(builder, loc, type.clone(shape), value).getResult();
}

Value ChunkWriter::prepare(Value whole, int64_t dim) {
  auto type = cast<RankedTensorType>(whole.getType());
  // Make the class a dimension of its own, after the classes above it.
  SmallVector<int64_t> shape(type.getShape());
  if (keys.above * keys.below > 1) {
    shape[dim] = keys.above;
    shape.insert(shape.begin() + dim + 1, {keys.factor.size, keys.below});
    whole = reshape(whole, shape);
    ++dim;
  }
  if (keys.factor.isExtended()) {
    shape[dim] = keys.factor.padded;
    whole =
        PadOp::create(builder, loc, type.clone(shape), whole, builder.getDenseI64ArrayAttr({dim}));
  }
  return reorder(whole, dim, /*toContiguous=*/false);
}

Value ChunkWriter::reorder(Value whole, int64_t dim, bool toContiguous) {
  if (keys.factor.order == TokenOrder::Contiguous)
    return whole;
  LayoutFactor to = keys.factor;
  to.axes.clear();
  LayoutFactor from = to;
  from.order = TokenOrder::Contiguous;
  from.orderRanks = 1;
  if (toContiguous)
    std::swap(from, to);
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

Value ChunkWriter::join(ValueRange blocks, int64_t dim, ArrayRef<int64_t> shifts) {
  auto type = cast<RankedTensorType>(blocks.front().getType());
  bool split = keys.above * keys.below > 1;
  SmallVector<int64_t> shape(type.getShape()), result = shape;
  result[dim] = keys.above * keys.factor.size * keys.below;
  if (split) {
    shape[dim] = keys.above;
    shape.insert(shape.begin() + dim + 1, {keys.factor.getLocalSize(), keys.below});
  }
  SmallVector<Value> chunks;
  for (Value block : blocks)
    chunks.push_back(reshape(block, shape));
  dim += split;
  shape[dim] = keys.factor.padded;
  Value whole =
      PlaceOp::create(builder, loc, type.clone(shape), chunks,
                      getAxesAttr(builder.getContext(), keys.factor.axes, mesh),
                      builder.getI64IntegerAttr(dim), builder.getDenseI64ArrayAttr(shifts));
  whole = reorder(whole, dim, /*toContiguous=*/true);
  if (keys.factor.isExtended())
    whole = nn::Writer(builder, loc).slice(whole, dim, 0, keys.factor.size);
  return reshape(whole, result);
}

Value ChunkWriter::getPositions(int64_t shift) {
  auto type = RankedTensorType::get({keys.factor.getLocalSize()}, builder.getI64Type());
  Value own = PositionsOp::create(builder, loc, type, getFactorAttr(keys.factor, mesh), keys.size,
                                  builder.getI64IntegerAttr(shift));
  if (keys.above * keys.below == 1)
    return own;
  // In a product only the sign is used (see addMasks).
  Value wide = nn::BroadcastOp::create(
      builder, loc, type.clone({keys.above, keys.factor.getLocalSize(), keys.below}),
      reshape(own, {1, keys.factor.getLocalSize(), 1}));
  return reshape(wide, {keys.getLocalSize()});
}

Value ChunkWriter::cutPositions(Value prepared, int64_t shift) {
  // Keys are the last dimension, or the last three (see prepare).
  int64_t rank = cast<RankedTensorType>(prepared.getType()).getRank();
  Value own = cut(prepared, rank - (keys.above * keys.below > 1 ? 3 : 1), shift);
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

RingOperands RingOperands::cut(ChunkWriter &chunks, int64_t shift) const {
  RingOperands own = *this;
  if (keyPadding)
    own.keyPadding = chunks.cut(keyPadding, 1, shift);
  if (cutsBias)
    own.bias = chunks.cut(bias, biasDim, shift);
  if (keyPositions)
    own.keyPositions = chunks.cutPositions(keyPositions, shift);
  else if (queryPositions)
    own.keyPositions = chunks.getPositions(shift);
  if (dropKeys)
    own.dropKeys = chunks.cut(dropKeys, 0, shift);
  return own;
}

/// The positions of the rows of `query`, a product of factors; zeros where there are no factors.
static Value makeQueryPositions(OpBuilder &builder, Location loc, MeshAttr mesh, Value query,
                                ArrayRef<LayoutFactor> queries) {
  nn::Writer writer(builder, loc);
  Type element = builder.getI64Type();
  // Queries behind a run-time size are padding of the result.
  auto getPositions = [&](LayoutFactor factor) -> Value {
    factor.runtimeSize = {};
    auto type = RankedTensorType::get({factor.getLocalSize()}, element);
    return PositionsOp::create(builder, loc, type, getFactorAttr(factor, mesh), /*size=*/Value(),
                               builder.getI64IntegerAttr(0));
  };
  if (queries.empty())
    return writer.fill(0, RankedTensorType::get({shapeOf(query)[2]}, element));
  Value positions = getPositions(queries.front());
  for (const LayoutFactor &factor : queries.drop_front()) {
    // Of a row of this factor, and of an element of the row.
    int64_t rows = shapeOf(positions)[0], columns = factor.getLocalSize();
    Value start = writer.mul(positions, writer.number(factor.size, element));
    Value table = writer.add(writer.broadcast(writer.reshape(start, {rows, 1}), {rows, columns}),
                             writer.broadcast(writer.reshape(getPositions(factor), {1, columns}),
                                              {rows, columns}));
    positions = writer.reshape(table, {rows * columns});
  }
  return positions;
}

void meshwright::addMasks(OpBuilder &builder, nn::ScoresOpInterface op, MeshAttr mesh,
                          const KeyDim &keys, ArrayRef<LayoutFactor> queries, ChunkWriter &chunks,
                          ArrayRef<Value> masks, RingOperands &operands) {
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

  int64_t count = cast<RankedTensorType>(op.getKey().getType()).getDimSize(2);
  int64_t batch = cast<RankedTensorType>(operands.query.getType()).getDimSize(0);
  if (std::optional<int64_t> length = op.getKvLength())
    keyPadding =
        limitKeys(builder, loc, showFirst(builder, loc, *length, count), batch, keyPadding);
  bool isProduct = keys.above * keys.below > 1 || queries.size() > 1;
  if (!queries.empty() && isProduct) {
    queryPositions = makeQueryPositions(builder, loc, mesh, operands.query, queries);
    keyPositions =
        nn::Writer(builder, loc).iota(0, RankedTensorType::get({count}, builder.getI64Type()));
  }
  // Only the sign of a product's own positions is used.
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
    operands.cutsBias = cast<RankedTensorType>(op.getBias().getType()).getShape().back() != 1;
  }
  if (operands.cutsBias)
    operands.bias = chunks.prepare(bias, operands.biasDim);

  // Positions decide which keys the mask hides, and which keys are padding.
  operands.queryPositions = queryPositions;
  operands.lengths = lengths;
  if (keyPositions)
    operands.keyPositions =
        chunks.prepare(keyPositions, cast<RankedTensorType>(keyPositions.getType()).getRank() - 1);
  else if (!queries.empty() || lengths || keys.factor.isPadded())
    operands.queryPositions = makeQueryPositions(builder, loc, mesh, operands.query, queries);
}

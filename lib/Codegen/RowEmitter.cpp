//===- RowEmitter.cpp - elements of a kernel, in vectors ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RowEmitter.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/SaveAndRestore.h"

using namespace mlir;

namespace meshwright::lower {

Type getRowStorageType(Type element) {
  return element.isBF16() ? IntegerType::get(element.getContext(), 16) : getStorageType(element);
}

Value toRowStorage(Builder &b, Value value) {
  if (!elementOf(value).isBF16())
    return toStorage(b, value);
  Type type = b.getI16Type();
  if (auto vector = dyn_cast<VectorType>(value.getType()))
    type = vector.clone(type);
  return arith::BitcastOp::create(b, type, value);
}

Value fromRowStorage(Builder &b, Value value, Type element) {
  if (!element.isBF16())
    return fromStorage(b, value, element);
  if (auto vector = dyn_cast<VectorType>(value.getType()))
    element = vector.clone(element);
  return arith::BitcastOp::create(b, element, value);
}

void RowEmitter::startRow(const LoopSpace &space, ArrayRef<Value> indices) {
  this->space = space;
  this->indices.assign(indices.begin(), indices.end());
  width = 0;
  rowValues.clear();
  firsts.clear();
  sizes.clear();
  streamed.clear();
  kept.clear();
  exponentials.clear();
  statistics.clear();
}

void RowEmitter::startColumns(int64_t begin, int64_t end, Value column, int64_t width,
                              Operation *anchor) {
  space.begin = begin;
  space.end = end;
  this->column = column;
  this->width = width;
  this->anchor = anchor;
  columnValues.clear();
}

void RowEmitter::setStatistic(Operation *op, unsigned stage, const Access &row, Value value) {
  statistics[stage].set(op->getResult(0), row, value);
}

Value RowEmitter::getStatistic(Operation *op, unsigned stage, const Access &row) {
  return *statistics[stage].find(op->getResult(0), row);
}

void RowEmitter::setKept(Value value, const Access &access, Value buffer, const Access &at) {
  kept.set(value, access, {buffer, at});
}

void RowEmitter::setExponentials(Operation *op, const Access &row, Value buffer) {
  Access at;
  at.rows.assign(row.rows.size(), 0);
  at.column = 1;
  exponentials.set(op->getResult(0), row, {buffer, at});
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value RowEmitter::emitIndexOf(const Access &access) {
  Value sum;
  auto add = [&](Value term, int64_t coefficient) {
    if (coefficient == 0)
      return;
    if (coefficient != 1)
      term = arith::MulIOp::create(builder, term, emitIndex(builder, coefficient));
    sum = sum ? arith::AddIOp::create(builder, sum, term).getResult() : term;
  };
  for (auto [index, coefficient] : llvm::zip_equal(indices, access.rows))
    if (index)
      add(index, coefficient);
  if (width)
    add(column, access.column);
  if (!sum || access.offset != 0)
    add(emitIndex(builder, access.offset), 1);
  return sum;
}

Value RowEmitter::load(Value buffer, const Access &access) {
  Value index = emitIndexOf(access);
  if (!width || access.column == 0)
    return memref::LoadOp::create(builder, buffer, index);
  auto type = VectorType::get(width, cast<MemRefType>(buffer.getType()).getElementType());
  if (access.column == 1)
    return vector::LoadOp::create(builder, type, buffer, index);
  SmallVector<Value> elements;
  for (int64_t i = 0; i < width; ++i) {
    Value at = arith::AddIOp::create(builder, index, emitIndex(builder, i * access.column));
    elements.push_back(memref::LoadOp::create(builder, buffer, at));
  }
  return vector::FromElementsOp::create(builder, type, elements);
}

void RowEmitter::store(Value element, Value buffer, const Access &access) {
  element = toRowStorage(builder, element);
  Value index = emitIndexOf(access);
  if (!width) {
    memref::StoreOp::create(builder, element, buffer, index);
    return;
  }
  element = toVector(element);
  if (access.column == 1 || width == 1) {
    vector::StoreOp::create(builder, element, buffer, index);
    return;
  }
  for (int64_t i = 0; i < width; ++i) {
    Value at = arith::AddIOp::create(builder, index, emitIndex(builder, i * access.column));
    memref::StoreOp::create(builder, vector::ExtractOp::create(builder, element, i), buffer, at);
  }
}

void RowEmitter::stream(Value element, Value buffer, const Access &access, Value isAligned,
                        int64_t vectorBytes) {
  int64_t bytes = cast<MemRefType>(buffer.getType()).getElementTypeBitWidth() / 8;
  auto isWhole = [&](int64_t elements) { return elements * bytes % vectorBytes == 0; };
  // The distance from the first column is a multiple of the width.
  bool canStream = width && access.column == 1 && isWhole(width) && isWhole(space.begin) &&
                   isWhole(access.offset) && llvm::all_of(access.rows, isWhole);
  if (!canStream)
    return store(element, buffer, access);
  element = toVector(toRowStorage(builder, element));
  Value index = emitIndexOf(access);
  if (bytes == 2) {
    // LLVM has no such stores of bf16, and it looks through casts to bf16.
    auto type = cast<VectorType>(element.getType());
    auto words = VectorType::get(width / 2, builder.getF32Type());
    Value same = vector::BitCastOp::create(builder, words, element);
    same = LLVM::CallIntrinsicOp::create(builder, words,
                                         builder.getStringAttr("llvm.arithmetic.fence"), same)
               .getResult(0);
    element = vector::BitCastOp::create(builder, type, same);
  }
  auto either = scf::IfOp::create(builder, isAligned, /*withElseRegion=*/true);
  for (bool streams : {true, false}) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(streams ? either.thenBlock() : either.elseBlock());
    vector::StoreOp::create(builder, element, buffer, index, /*nontemporal=*/streams,
                            streams ? llvm::MaybeAlign(vectorBytes) : llvm::MaybeAlign());
  }
}

/// Prefetches the lines of a share of a row, at the same fraction of the share as the column is of
/// the row.
void RowEmitter::prefetchLines(Value buffer, const Access &access, Value shift, bool isWritten,
                               int64_t share, int64_t shares) {
  constexpr int64_t lineBytes = 64;
  int64_t bytes = cast<MemRefType>(buffer.getType()).getElementTypeBitWidth() / 8;
  llvm::SaveAndRestore<Value> scope(column);
  if (shares > 1) {
    int64_t first = space.begin + (space.end - space.begin) * share / shares;
    Value along = arith::SubIOp::create(builder, column, emitIndex(builder, space.begin));
    along = arith::DivUIOp::create(builder, along, emitIndex(builder, shares));
    column = arith::AddIOp::create(builder, along, emitIndex(builder, first));
  }
  Value index = emitIndexOf(access);
  if (shift)
    index = arith::AddIOp::create(builder, index, shift);
  for (int64_t i = 0, span = llvm::divideCeil(width, shares); i < span; i += lineBytes / bytes) {
    Value at = arith::AddIOp::create(builder, index, emitIndex(builder, i));
    memref::PrefetchOp::create(builder, buffer, at, isWritten, /*localityHint=*/isWritten ? 3 : 2,
                               /*isDataCache=*/true);
  }
}

void RowEmitter::prefetchRead(unsigned dimension, Value further, int64_t share, int64_t shares) {
  for (auto [value, access] : streamed)
    if (int64_t stride = access.rows[dimension])
      prefetchLines(getBuffer(value), access,
                    arith::MulIOp::create(builder, further, emitIndex(builder, stride)),
                    /*isWritten=*/false, share, shares);
}

void RowEmitter::prefetchWritten(Value buffer, const Access &access, int64_t share,
                                 int64_t shares) {
  prefetchLines(buffer, access, Value(), /*isWritten=*/true, share, shares);
}

Value RowEmitter::toVector(Value value) {
  if (isa<VectorType>(value.getType()))
    return value;
  auto type = VectorType::get(width, value.getType());
  if (!value.getType().isBF16())
    return vector::BroadcastOp::create(builder, type, value);
  // As integers, since LLVM rounds bf16 once more, by a call, on processors without bf16.
  Value bits = arith::BitcastOp::create(builder, builder.getI16Type(), value);
  bits = vector::BroadcastOp::create(builder, type.clone(builder.getI16Type()), bits);
  return arith::BitcastOp::create(builder, type, bits);
}

//===----------------------------------------------------------------------===//
// Elements
//===----------------------------------------------------------------------===//

Value RowEmitter::emit(Value value, const Access &access) {
  if (!width || access.column != 0) {
    NodeMap<Value> &known = width ? columnValues : rowValues;
    if (Value *element = known.find(value, access))
      return *element;
    Value element = emitNew(value, access);
    known.set(value, access, element);
    return element;
  }
  // Elements that all columns share are computed before the columns.
  if (Value *element = rowValues.find(value, access))
    return *element;
  OpBuilder::InsertionGuard guard(builder);
  if (anchor)
    builder.setInsertionPoint(anchor);
  int64_t columns = width;
  width = 0;
  Value element = emit(value, access);
  width = columns;
  return element;
}

Value RowEmitter::emitVector(Value value, const Access &access) {
  return toVector(emit(value, access));
}

Value RowEmitter::emitOperand(Operation *op, Value operand, const Access &access) {
  return emit(operand, *getOperandAccess(op, operand, access, space));
}

Value RowEmitter::emitNew(Value value, const Access &access) {
  if (KeptBuffer *from = kept.find(value, access))
    return fromRowStorage(builder, load(from->buffer, from->at), elementOf(value));
  Operation *op = region.getDefiningOp(value);
  if (!op && width && access.column == 1 && !access.isConstantInRows() &&
      !llvm::is_contained(streamed, std::make_pair(value, access)))
    streamed.push_back({value, access});
  if (!op)
    return fromRowStorage(builder, load(getBuffer(value), access), elementOf(value));
  if (auto constant = dyn_cast<nn::ConstantOp>(op)) {
    auto splat = cast<DenseElementsAttr>(constant.getValue());
    return emitConstant(builder, splat.getSplatValue<TypedAttr>());
  }
  if (auto iota = dyn_cast<nn::IotaOp>(op))
    return emitIota(iota, access);
  if (auto positions = getTestedPositions(region, op))
    return emitIsTrue(positions, access);
  if (auto positions = dyn_cast<dist::PositionsOp>(op))
    return emitPositions(positions, access);
  if (hasColumnSections(op))
    return emitSection(op, access);
  if (isRowReduction(op))
    return emitRowReduction(op, access);
  SmallVector<Value> operands;
  bool isVector = false;
  for (Value operand : op->getOperands()) {
    operands.push_back(emitOperand(op, operand, access));
    isVector |= isa<VectorType>(operands.back().getType());
  }
  if (op->hasTrait<dist::Reindexes>())
    return operands[0];
  if (isVector)
    for (Value &operand : operands)
      operand = toVector(operand);
  return emitElement(builder, op, operands, getOrder());
}

Value RowEmitter::emitIota(nn::IotaOp op, const Access &access) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
  Access along = (*delinearize(access, type.getShape(), space))[op.getDim()];
  bool evenFirst = getOrder() == LaneOrder::EvenFirst && type.getElementType().isF32();
  Value count = emitCount(along, builder.getI64Type(), evenFirst);
  return emitCast(builder, count, type.getElementType());
}

Value RowEmitter::emitCount(const Access &along, Type type, bool evenFirst) {
  Value first = arith::IndexCastOp::create(builder, type, emitIndexOf(along));
  if (!width || along.column == 0)
    return first;
  SmallVector<Attribute> steps;
  for (int64_t i = 0; i < width; ++i)
    steps.push_back(builder.getIntegerAttr(
        type, (evenFirst ? 2 * i % width + 2 * i / width : i) * along.column));
  Value offsets = arith::ConstantOp::create(
      builder, DenseElementsAttr::get(VectorType::get(width, type), steps));
  return arith::AddIOp::create(builder, toVector(first), offsets);
}

Value RowEmitter::emitFirst(dist::PositionsOp op) {
  Value &first = firsts[op];
  if (!first) {
    OpBuilder::InsertionGuard guard(builder);
    if (width && anchor)
      builder.setInsertionPoint(anchor);
    first = memref::LoadOp::create(builder, getBuffer(op.getResult()), emitIndex(builder, 0));
  }
  return first;
}

/// The run-time size of the positions' factor.
Value RowEmitter::emitSize(dist::PositionsOp op) {
  Value &size = sizes[op];
  if (!size) {
    OpBuilder::InsertionGuard guard(builder);
    if (width && anchor)
      builder.setInsertionPoint(anchor);
    size = memref::LoadOp::create(builder, getBuffer(op.getSize()), emitIndex(builder, 0));
  }
  return size;
}

/// Padding follows the true elements, so the test is one of the index, in i32 where that is wide
/// enough.
Value RowEmitter::emitIsTrue(dist::PositionsOp op, const Access &access) {
  dist::LayoutFactor factor = dist::getFactor(op, dist::getSpmdMesh(op));
  Type type = factor.padded < (int64_t(1) << 31) ? builder.getI32Type() : builder.getI64Type();
  Value limit = op.getSize() ? emitCast(builder, emitSize(op), type)
                             : emitConstant(builder, type, double(factor.size));
  limit = arith::SubIOp::create(builder, limit, emitCast(builder, emitFirst(op), type));
  auto shape = cast<RankedTensorType>(op.getResult().getType()).getShape();
  Value count = emitCount(delinearize(access, shape, space)->front(), type);
  if (isa<VectorType>(count.getType()))
    limit = toVector(limit);
  return arith::CmpIOp::create(builder, arith::CmpIPredicate::slt, count, limit);
}

/// In the contiguous order.
Value RowEmitter::emitPositions(dist::PositionsOp op, const Access &access) {
  Type type = builder.getI64Type();
  auto shape = cast<RankedTensorType>(op.getResult().getType()).getShape();
  Value count = emitCount(delinearize(access, shape, space)->front(), type), first = emitFirst(op);
  if (isa<VectorType>(count.getType()))
    first = toVector(first);
  Value position = arith::AddIOp::create(builder, count, first);
  dist::LayoutFactor factor = dist::getFactor(op, dist::getSpmdMesh(op));
  Value size = op.getSize() ? emitSize(op) : emitConstant(builder, type, factor.size);
  if (isa<VectorType>(position.getType()))
    size = toVector(size);
  Value isTrue = arith::CmpIOp::create(builder, arith::CmpIPredicate::slt, position, size);
  return arith::SelectOp::create(builder, isTrue, position,
                                 emitConstant(builder, position.getType(), -1));
}

/// Emits elements of a rotary op or of a concatenation.
Value RowEmitter::emitSection(Operation *op, const Access &access) {
  auto sections = getColumnSections(op, access, space);
  const ColumnSection &section = sections->front();
  auto read = [&](Value operand, int64_t from, int64_t shift) {
    return emit(operand, *getSectionAccess(op, operand, from, shift, access, space));
  };
  Value own = read(section.operand, section.from, 0);
  auto rotary = dyn_cast<nn::RotaryOp>(op);
  if (!rotary || section.kind == RotarySection::Rest)
    return own;
  Type type = getComputeType(elementOf(own));
  Value other;
  if (section.kind == RotarySection::Pairs) {
    own = toVector(own);
    // Vectors of bf16 have the order of memory. Vectors computed from it have `getOrder`.
    bool halves = getOrder() == LaneOrder::EvenFirst && elementOf(own).isF32();
    SmallVector<int64_t> exchanged;
    for (int64_t i = 0; i < width; ++i)
      exchanged.push_back(halves ? (i + width / 2) % width : i ^ 1);
    other = vector::ShuffleOp::create(builder, own, own, exchanged);
  } else {
    other = read(section.operand, 0, getRotaryShift(rotary, section.kind));
  }
  auto times = [&](Value x, Value table) -> Value {
    x = convert(x, type);
    table = convert(table, type);
    if (width) {
      x = toVector(x);
      table = toVector(table);
    }
    return arith::MulFOp::create(builder, x, table);
  };
  Value cosine = times(own, read(rotary.getCos(), 0, 0));
  Value sine = times(other, read(rotary.getSin(), 0, 0));
  Value result;
  if (section.kind == RotarySection::Pairs) {
    // The first element of each pair subtracts the second term.
    auto vectorType = cast<VectorType>(sine.getType());
    bool evenFirst = getOrder() == LaneOrder::EvenFirst;
    SmallVector<Attribute> signs;
    for (int64_t i = 0; i < width; ++i)
      signs.push_back(
          builder.getFloatAttr(type, (evenFirst ? i >= width / 2 : i % 2) ? 1.0 : -1.0));
    Value sign = arith::ConstantOp::create(builder, DenseElementsAttr::get(vectorType, signs));
    sine = arith::MulFOp::create(builder, sine, sign);
    result = arith::AddFOp::create(builder, cosine, sine);
  } else if (section.kind == RotarySection::First) {
    result = arith::SubFOp::create(builder, cosine, sine);
  } else {
    result = arith::AddFOp::create(builder, cosine, sine);
  }
  return convert(result, elementOf(own));
}

//===----------------------------------------------------------------------===//
// Reductions of rows
//===----------------------------------------------------------------------===//

/// lhs op rhs; a scalar if both are scalars.
template <typename Op> static Value combine(Builder &b, Value lhs, Value rhs) {
  auto lift = [&](Value value, Value like) -> Value {
    auto type = dyn_cast<VectorType>(like.getType());
    if (!type || isa<VectorType>(value.getType()))
      return value;
    return vector::BroadcastOp::create(b, type.clone(value.getType()), value);
  };
  return Op::create(b, lift(lhs, rhs), lift(rhs, lhs));
}

Value RowEmitter::emitTerm(const Statistic &statistic) {
  Operation *op = statistic.op;
  Access access = statistic.row;
  access.column = 1;
  Value x = emitVector(op->getOperand(0), access);
  x = convert(x, getComputeType(elementOf(x)));
  switch (statistic.kind) {
  case Statistic::Sum:
  case Statistic::Max:
  case Statistic::Min:
    return x;
  case Statistic::SquareSum:
    return arith::MulFOp::create(builder, x, x);
  case Statistic::CentredSquareSum:
    x = combine<arith::SubFOp>(builder, x, getStatistic(op, 0, statistic.row));
    return arith::MulFOp::create(builder, x, x);
  case Statistic::ExponentialSum:
    return emitExponential(op, statistic.row, x);
  }
  return x;
}

/// The exponential of an element, in the compute type, of a softmax.
Value RowEmitter::emitExponential(Operation *op, const Access &row, Value x) {
  x = combine<arith::SubFOp>(builder, x, getStatistic(op, 0, row));
  return math::ExpOp::create(builder, x, getAccuracy(op->getResult(0).getType()));
}

Value RowEmitter::emitRowReduction(Operation *op, const Access &access) {
  Access row = *getStatisticRow(op, access, space);
  Type type = elementOf(op->getResult(0)), compute = getComputeType(type);
  if (isa<nn::ReduceOp>(op))
    return convert(getStatistic(op, 0, row), type);
  auto operand = [&](Value value) { return convert(emitOperand(op, value, access), compute); };
  if (auto softmax = dyn_cast<nn::SoftmaxOp>(op)) {
    const KeptBuffer *from = exponentials.find(softmax.getResult(), row);
    if (!from) {
      Value x = convert(emit(op->getOperand(0), access), compute);
      x = emitExponential(op, row, x);
      return convert(combine<arith::MulFOp>(builder, x, getStatistic(op, 1, row)), type);
    }
    // The index of the element in its row.
    Access at = from->at;
    at.column = access.column;
    at.offset = access.offset - row.offset;
    for (size_t i = 0; i < at.rows.size(); ++i)
      at.rows[i] = access.rows[i] - row.rows[i];
    Value x = load(from->buffer, at);
    return convert(combine<arith::MulFOp>(builder, x, getStatistic(op, 1, row)), type);
  }
  Value x = convert(emit(op->getOperand(0), access), compute);
  if (auto norm = dyn_cast<nn::RmsNormOp>(op)) {
    x = combine<arith::MulFOp>(builder, x, getStatistic(op, 0, row));
    if (norm.getWeight()) {
      Value weight = operand(norm.getWeight());
      if (norm.getUnitOffset())
        weight = arith::AddFOp::create(builder, emitConstant(builder, weight.getType(), 1), weight);
      x = combine<arith::MulFOp>(builder, x, weight);
    }
    return convert(x, type);
  }
  auto norm = cast<nn::LayerNormOp>(op);
  x = combine<arith::SubFOp>(builder, x, getStatistic(op, 0, row));
  x = combine<arith::MulFOp>(builder, x, getStatistic(op, 1, row));
  if (norm.getWeight())
    x = combine<arith::MulFOp>(builder, x, operand(norm.getWeight()));
  if (norm.getBias())
    x = combine<arith::AddFOp>(builder, x, operand(norm.getBias()));
  return convert(x, type);
}

} // namespace meshwright::lower

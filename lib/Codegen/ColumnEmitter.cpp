//===- ColumnEmitter.cpp - reductions over outer dimensions ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/ColumnEmitter.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

/// The most elements that floats sum one by one.
constexpr int64_t kExactElements = 64;

/// The reduction of the op, and its dimensions.
static std::optional<std::pair<nn::ReduceKind, SmallVector<int64_t>>> getReduction(Operation *op) {
  if (auto softmax = dyn_cast<nn::SoftmaxOp>(op))
    return std::make_pair(nn::ReduceKind::Max, SmallVector<int64_t>{int64_t(softmax.getDim())});
  if (auto sum = dyn_cast<nn::CumsumOp>(op))
    return std::make_pair(nn::ReduceKind::Sum, SmallVector<int64_t>{int64_t(sum.getDim())});
  if (auto reduce = dyn_cast<nn::ReduceOp>(op))
    return std::make_pair(reduce.getKind(), SmallVector<int64_t>(reduce.getDims()));
  return std::nullopt;
}

std::optional<ColumnEmitter> ColumnEmitter::create(Operation *op, int64_t widest) {
  auto reduction = getReduction(op);
  if (!reduction)
    return std::nullopt;
  return ColumnEmitter(op, reduction->first, reduction->second, widest);
}

ColumnEmitter::ColumnEmitter(Operation *op, nn::ReduceKind kind, ArrayRef<int64_t> dims,
                             int64_t widest)
    : op(op), kind(kind),
      columns(cast<RankedTensorType>(op->getOperand(0).getType()).getShape(), dims),
      element(getElementTypeOrSelf(op->getOperand(0).getType())), compute(getComputeType(element)),
      isFloat(isa<FloatType>(compute)) {
  kept = columns.getSizes(/*ofReduced=*/false);
  bool isInner = !columns.reduced.empty() && !columns.reduced.back();
  vectorSize = isInner ? kept.pop_back_val() : 1;
  int64_t bytes = std::max<int64_t>(4, compute.getIntOrFloatBitWidth() / 8);
  width = std::min(vectorSize, std::max<int64_t>(widest * 4 / bytes, 1));
  blocks = llvm::divideCeil(vectorSize, std::max<int64_t>(width, 1));
  items = blocks;
  for (int64_t size : kept)
    items *= size;
}

int64_t ColumnEmitter::getWorkspaceBytes() const {
  return isa<nn::SoftmaxOp>(op) ? columns.count * width * compute.getIntOrFloatBitWidth() / 8 : 0;
}

Value ColumnEmitter::getVector(Value buffer, Value index) {
  Builder &b = *builder;
  Type stored = cast<MemRefType>(buffer.getType()).getElementType();
  Value value = vector::LoadOp::create(b, VectorType::get(current, stored), buffer, index);
  // Buffers may store bf16 as integers.
  if (element.isBF16() && stored.isInteger(16))
    value = arith::BitcastOp::create(b, VectorType::get(current, element), value);
  return emitCast(b, value, compute);
}

void ColumnEmitter::setVector(Value value, Value buffer, Value index) {
  Builder &b = *builder;
  Type stored = cast<MemRefType>(buffer.getType()).getElementType();
  bool asInteger = element.isBF16() && stored.isInteger(16);
  value = emitCast(b, value, asInteger ? element : stored);
  if (asInteger)
    value = arith::BitcastOp::create(b, VectorType::get(current, stored), value);
  vector::StoreOp::create(b, value, buffer, index);
}

Value ColumnEmitter::getConstant(double value) {
  return emitConstant(*builder, VectorType::get(current, compute), value);
}

Value ColumnEmitter::getNeutral() {
  if (kind == nn::ReduceKind::Sum || kind == nn::ReduceKind::Mean)
    return getConstant(0);
  bool isMax = kind == nn::ReduceKind::Max;
  double infinity = std::numeric_limits<double>::infinity();
  if (isFloat)
    return getConstant(isMax ? -infinity : infinity);
  unsigned bits = compute.getIntOrFloatBitWidth();
  APInt extreme = isMax ? APInt::getSignedMinValue(bits) : APInt::getSignedMaxValue(bits);
  return arith::ConstantOp::create(
      *builder, DenseElementsAttr::get(VectorType::get(current, compute), extreme));
}

Value ColumnEmitter::combine(Value lhs, Value rhs) {
  Builder &b = *builder;
  switch (kind) {
  case nn::ReduceKind::Sum:
  case nn::ReduceKind::Mean:
    return isFloat ? arith::AddFOp::create(b, lhs, rhs).getResult()
                   : arith::AddIOp::create(b, lhs, rhs).getResult();
  case nn::ReduceKind::Max:
    return isFloat ? arith::MaximumFOp::create(b, lhs, rhs).getResult()
                   : arith::MaxSIOp::create(b, lhs, rhs).getResult();
  case nn::ReduceKind::Min:
    return isFloat ? arith::MinimumFOp::create(b, lhs, rhs).getResult()
                   : arith::MinSIOp::create(b, lhs, rhs).getResult();
  }
  return lhs;
}

Value ColumnEmitter::foldFrom(size_t dim, Value base, Value folded, Step step) {
  while (dim < columns.sizes.size() && !columns.reduced[dim])
    ++dim;
  if (dim == columns.sizes.size())
    return step(base, folded);
  Builder &b = *builder;
  auto emitLoop = [&](Value first, Value last, int64_t by, Value init,
                      function_ref<Value(Value, Value)> body) {
    auto loop = scf::ForOp::create(b, first, last, emitIndex(b, by), ValueRange(init));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(loop.getBody());
    Value next = body(loop.getInductionVar(), loop.getRegionIterArgs()[0]);
    scf::YieldOp::create(b, next);
    return loop.getResult(0);
  };
  auto emitElement = [&](Value i, Value known) {
    Value offset = arith::MulIOp::create(b, i, emitIndex(b, columns.getStride(dim)));
    return foldFrom(dim + 1, arith::AddIOp::create(b, base, offset), known, step);
  };
  int64_t size = columns.sizes[dim];
  Value first = emitIndex(b, 0), last = emitIndex(b, size);
  bool isSum = kind == nn::ReduceKind::Sum || kind == nn::ReduceKind::Mean;
  if (size <= kExactElements || !isFloat || !isSum || !isa<nn::ReduceOp>(op))
    return emitLoop(first, last, 1, folded, emitElement);
  // A long sum is a sum of shorter ones, which is more exact.
  int64_t block = std::ceil(std::sqrt(double(size)));
  return emitLoop(first, last, block, folded, [&](Value i, Value known) {
    Value end = arith::AddIOp::create(b, i, emitIndex(b, block));
    end = arith::MinUIOp::create(b, end, last);
    return combine(known, emitLoop(i, end, 1, getNeutral(), emitElement));
  });
}

void ColumnEmitter::emit(Builder &b, Value item, Value input, Value output, Value workspace) {
  builder = &b;
  this->input = input;
  this->output = output;
  this->workspace = workspace;
  auto split = [&](int64_t size) -> Value {
    Value rest = arith::RemUIOp::create(b, item, emitIndex(b, size));
    item = arith::DivUIOp::create(b, item, emitIndex(b, size));
    return rest;
  };
  Value block = blocks > 1 ? split(blocks) : emitIndex(b, 0);
  Value column = arith::MulIOp::create(b, block, emitIndex(b, width));
  // The index of the point in the input. In the result, kept dimensions are dense.
  Value to = arith::MulIOp::create(b, item, emitIndex(b, vectorSize));
  to = arith::AddIOp::create(b, to, column);
  Value from = column;
  size_t left = kept.size();
  bool isInner = !columns.reduced.empty() && !columns.reduced.back();
  for (size_t d = columns.sizes.size() - (isInner ? 1 : 0); d-- > 0;) {
    if (columns.reduced[d])
      continue;
    Value index = --left == 0 ? item : split(columns.sizes[d]);
    from = arith::AddIOp::create(
        b, from, arith::MulIOp::create(b, index, emitIndex(b, columns.getStride(d))));
  }
  int64_t rest = vectorSize % width;
  if (rest == 0 || blocks == 1) {
    current = width;
    return emitVector(from, to);
  }
  Value isLast =
      arith::CmpIOp::create(b, arith::CmpIPredicate::eq, block, emitIndex(b, blocks - 1));
  auto choice = scf::IfOp::create(b, isLast, /*withElseRegion=*/true);
  b.setInsertionPointToStart(choice.thenBlock());
  current = rest;
  emitVector(from, to);
  b.setInsertionPointToStart(choice.elseBlock());
  current = width;
  emitVector(from, to);
}

void ColumnEmitter::emitVector(Value from, Value to) {
  Builder &b = *builder;
  auto combine = [&](Value index, Value folded) {
    return this->combine(folded, getVector(input, index));
  };
  if (isa<nn::CumsumOp>(op)) {
    fold(from, getNeutral(), [&](Value index, Value sum) {
      Value next = this->combine(sum, getVector(input, index));
      setVector(next, output, index);
      return next;
    });
    return;
  }
  Value value = fold(from, getNeutral(), combine);
  auto reduce = dyn_cast<nn::ReduceOp>(op);
  if (!reduce)
    return emitSoftmax(from, value);
  if (reduce.getKind() == nn::ReduceKind::Mean) {
    Value count = getConstant(columns.count);
    value = isFloat ? arith::DivFOp::create(b, value, count).getResult()
                    : arith::FloorDivSIOp::create(b, value, count).getResult();
  }
  setVector(value, output, to);
}

void ColumnEmitter::emitSoftmax(Value from, Value highest) {
  Builder &b = *builder;
  // A column of -inf gives zeros.
  Value zero = getConstant(0);
  Value lowest = getConstant(-std::numeric_limits<double>::infinity());
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, highest, lowest);
  Value shift = arith::SelectOp::create(b, isEmpty, zero, highest);
  Value powers;
  if (workspace)
    powers = memref::ViewOp::create(b, MemRefType::get({columns.count * width}, compute), workspace,
                                    emitIndex(b, 0), ValueRange());
  // The index of an element in the workspace, by its index in the column.
  size_t dim = llvm::find(columns.reduced, true) - columns.reduced.begin();
  int64_t stride = dim < columns.sizes.size() ? columns.getStride(dim) : 1;
  auto indexOf = [&](Value index) -> Value {
    Value offset = arith::SubIOp::create(b, index, from);
    offset = arith::DivUIOp::create(b, offset, emitIndex(b, stride));
    return arith::MulIOp::create(b, offset, emitIndex(b, current));
  };
  auto getPower = [&](Value index) -> Value {
    return math::ExpOp::create(b, arith::SubFOp::create(b, getVector(input, index), shift));
  };
  Value sum = fold(from, zero, [&](Value index, Value folded) -> Value {
    Value power = getPower(index);
    if (powers)
      vector::StoreOp::create(b, power, powers, indexOf(index));
    return arith::AddFOp::create(b, folded, power);
  });
  Value divisor = arith::SelectOp::create(b, isEmpty, getConstant(1), sum);
  Value inverse = arith::DivFOp::create(b, getConstant(1), divisor);
  fold(from, zero, [&](Value index, Value folded) -> Value {
    Value power = powers ? vector::LoadOp::create(b, cast<VectorType>(zero.getType()), powers,
                                                  indexOf(index))
                               .getResult()
                         : getPower(index);
    setVector(arith::MulFOp::create(b, power, inverse), output, index);
    return folded;
  });
}

} // namespace meshwright::lower

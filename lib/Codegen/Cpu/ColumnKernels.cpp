//===- ColumnKernels.cpp - reductions over outer dimensions ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels of softmax, reductions and running sums along dimensions that are not the last ones.
// The last dimensions are lanes, and each lane has a sum of its own.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/RowPlan.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {

/// A value as dimensions that are reduced (or summed along) and dimensions that are kept.
struct Columns {
  /// The shape. Adjacent dimensions of one kind are one.
  SmallVector<int64_t> sizes;
  SmallVector<bool> reduced;
  /// Elements that are reduced together.
  int64_t count = 1;

  Columns(ArrayRef<int64_t> shape, ArrayRef<int64_t> dims) {
    for (auto [d, size] : llvm::enumerate(shape)) {
      bool isReduced = llvm::is_contained(dims, int64_t(d));
      count *= isReduced ? size : 1;
      if (size == 1)
        continue;
      if (!sizes.empty() && reduced.back() == isReduced) {
        sizes.back() *= size;
      } else {
        sizes.push_back(size);
        reduced.push_back(isReduced);
      }
    }
  }

  SmallVector<int64_t> getSizes(bool ofReduced) const {
    SmallVector<int64_t> result;
    for (auto [size, isReduced] : llvm::zip_equal(sizes, reduced))
      if (isReduced == ofReduced)
        result.push_back(size);
    return result;
  }
  int64_t getStride(size_t dim) const {
    int64_t stride = 1;
    for (size_t d = dim + 1; d < sizes.size(); ++d)
      stride *= sizes[d];
    return stride;
  }
};

/// Emits the loop over items. An item is a point of the kept dimensions, or a vector of the
/// last one.
class ColumnKernel {
public:
  ColumnKernel(nn::ReduceKind kind, Type element, const Columns &columns, const Processor &processor)
      : columns(columns), element(element), compute(getComputeType(element)), kind(kind),
        isFloat(isa<FloatType>(compute)) {
    kept = columns.getSizes(/*ofReduced=*/false);
    bool isInner = !columns.reduced.empty() && !columns.reduced.back();
    vectorSize = isInner ? kept.pop_back_val() : 1;
    int64_t bytes = std::max<int64_t>(4, compute.getIntOrFloatBitWidth() / 8);
    width = std::min(vectorSize, 4 * processor.vectorBytes / bytes);
    blocks = llvm::divideCeil(vectorSize, std::max<int64_t>(width, 1));
    items = blocks;
    for (int64_t size : kept)
      items *= size;
  }

  /// Calls `body` with the first elements of each item in the input and in the result. `width`
  /// is set then.
  void emit(Builder &b, ValueRange arguments, function_ref<void(Value, Value)> body);

  Value getVector(Value buffer, Value index) {
    Builder &b = *builder;
    auto type = VectorType::get(current, cast<MemRefType>(buffer.getType()).getElementType());
    return emitCast(b, vector::LoadOp::create(b, type, buffer, index), compute);
  }
  void setVector(Value value, Value buffer, Value index) {
    value = emitCast(*builder, value, cast<MemRefType>(buffer.getType()).getElementType());
    vector::StoreOp::create(*builder, value, buffer, index);
  }
  Value getConstant(double value) {
    return emitConstant(*builder, VectorType::get(current, compute), value);
  }
  Value getNeutral();
  Value combine(Value lhs, Value rhs);
  /// Folds over all reduced dimensions. `step` gets the index of the element.
  Value fold(Value base, Value init, function_ref<Value(Value index, Value state)> step);

  const Columns &columns;
  Type element, compute;
  nn::ReduceKind kind;
  bool isFloat;
  SmallVector<int64_t> kept;
  /// The last dimension if it is kept, and how it is cut.
  int64_t vectorSize, width, blocks, items;
  Builder *builder = nullptr;
  int64_t current = 1;

private:
  Value foldFrom(size_t dim, Value base, Value state,
                 function_ref<Value(Value index, Value state)> step);
};

} // namespace

Value ColumnKernel::getNeutral() {
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

Value ColumnKernel::combine(Value lhs, Value rhs) {
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

Value ColumnKernel::foldFrom(size_t dim, Value base, Value state,
                             function_ref<Value(Value index, Value state)> step) {
  while (dim < columns.sizes.size() && !columns.reduced[dim])
    ++dim;
  if (dim == columns.sizes.size())
    return step(base, state);
  Builder &b = *builder;
  auto loop = scf::ForOp::create(b, emitIndex(b, 0), emitIndex(b, columns.sizes[dim]),
                                 emitIndex(b, 1), ValueRange(state));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  Value offset =
      arith::MulIOp::create(b, loop.getInductionVar(), emitIndex(b, columns.getStride(dim)));
  Value next =
      foldFrom(dim + 1, arith::AddIOp::create(b, base, offset), loop.getRegionIterArgs()[0], step);
  scf::YieldOp::create(b, next);
  return loop.getResult(0);
}

Value ColumnKernel::fold(Value base, Value init,
                         function_ref<Value(Value index, Value state)> step) {
  return foldFrom(0, base, init, step);
}

void ColumnKernel::emit(Builder &b, ValueRange arguments, function_ref<void(Value, Value)> body) {
  builder = &b;
  if (items == 0)
    return;
  auto loop = scf::ForOp::create(b, arguments[arguments.size() - 3],
                                 arguments[arguments.size() - 2], emitIndex(b, 1));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  Value item = loop.getInductionVar();
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
    return body(from, to);
  }
  Value isLast =
      arith::CmpIOp::create(b, arith::CmpIPredicate::eq, block, emitIndex(b, blocks - 1));
  auto choice = scf::IfOp::create(b, isLast, /*withElseRegion=*/true);
  b.setInsertionPointToStart(choice.thenBlock());
  current = rest;
  body(from, to);
  b.setInsertionPointToStart(choice.elseBlock());
  current = width;
  body(from, to);
}

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

std::optional<KernelInfo> KernelScope::buildColumns(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1)
    return std::nullopt;
  Operation *op = &*ops.begin();
  auto reduction = getReduction(op);
  if (!reduction)
    return std::nullopt;
  auto type = cast<RankedTensorType>(op->getOperand(0).getType());
  Columns columns(type.getShape(), reduction->second);
  ColumnKernel emitter(reduction->first, type.getElementType(), columns, kernels.getProcessor());
  Value result = op->getResult(0);
  int64_t outputs = cast<RankedTensorType>(result.getType()).getNumElements();
  int64_t elementBytes = getStorageType(type.getElementType()).getIntOrFloatBitWidth() / 8;
  KernelInfo info;
  info.inputs = {op->getOperand(0)};
  info.items = emitter.items;
  info.bytes = (type.getNumElements() + outputs) * elementBytes;
  info.flops = type.getNumElements();
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  bool isSoftmax = isa<nn::SoftmaxOp>(op);
  // Holds exponentials between the loop that sums them and the loop that divides them.
  if (isSoftmax)
    info.workspaceBytes =
        columns.count * emitter.width * emitter.compute.getIntOrFloatBitWidth() / 8;
  func::FuncOp kernel = begin(
      op,
      {getBufferType(op->getOperand(0), {type.getNumElements()}), getBufferType(result, {outputs})},
      info.workspaceBytes);
  Builder b = getBuilder(kernel);
  Value x = kernel.getArgument(0), out = kernel.getArgument(1);
  Value workspace = kernel.getArguments().back();
  emitter.emit(b, kernel.getArguments(), [&](Value from, Value to) {
    auto load = [&](Value index) { return emitter.getVector(x, index); };
    auto combine = [&](Value index, Value state) { return emitter.combine(state, load(index)); };
    if (isa<nn::CumsumOp>(op)) {
      emitter.fold(from, emitter.getNeutral(), [&](Value index, Value sum) {
        Value next = emitter.combine(sum, load(index));
        emitter.setVector(next, out, index);
        return next;
      });
      return;
    }
    Value value = emitter.fold(from, emitter.getNeutral(), combine);
    if (auto reduce = dyn_cast<nn::ReduceOp>(op)) {
      if (reduce.getKind() == nn::ReduceKind::Mean) {
        Value count = emitter.getConstant(columns.count);
        value = emitter.isFloat ? arith::DivFOp::create(b, value, count).getResult()
                                : arith::FloorDivSIOp::create(b, value, count).getResult();
      }
      emitter.setVector(value, out, to);
      return;
    }
    // A column of -inf gives zeros.
    Value zero = emitter.getConstant(0);
    Value lowest = emitter.getConstant(-std::numeric_limits<double>::infinity());
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, value, lowest);
    Value shift = arith::SelectOp::create(b, isEmpty, zero, value);
    Value powers =
        memref::ViewOp::create(b, MemRefType::get({columns.count * emitter.width}, emitter.compute),
                               workspace, emitIndex(b, 0), ValueRange());
    // The index of an element in the workspace, by its index in the column.
    size_t dim = llvm::find(columns.reduced, true) - columns.reduced.begin();
    int64_t stride = dim < columns.sizes.size() ? columns.getStride(dim) : 1;
    auto place = [&](Value index) -> Value {
      Value offset = arith::SubIOp::create(b, index, from);
      offset = arith::DivUIOp::create(b, offset, emitIndex(b, stride));
      return arith::MulIOp::create(b, offset, emitIndex(b, emitter.current));
    };
    Value sum = emitter.fold(from, zero, [&](Value index, Value state) -> Value {
      Value power = math::ExpOp::create(b, arith::SubFOp::create(b, load(index), shift));
      emitter.setVector(power, powers, place(index));
      return arith::AddFOp::create(b, state, power);
    });
    Value divisor = arith::SelectOp::create(b, isEmpty, emitter.getConstant(1), sum);
    Value inverse = arith::DivFOp::create(b, emitter.getConstant(1), divisor);
    emitter.fold(from, zero, [&](Value index, Value state) -> Value {
      Value power = emitter.getVector(powers, place(index));
      emitter.setVector(arith::MulFOp::create(b, power, inverse), out, index);
      return state;
    });
  });
  info.name = finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

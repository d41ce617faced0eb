//===- MoveKernels.cpp - concatenation, padding, rotary embedding ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelScope.h"

using namespace mlir;

namespace meshwright::lower {

KernelInfo KernelScope::buildConcat(nn::ConcatOp op) {
  auto type = cast<RankedTensorType>(op.getResult().getType());
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < type.getRank(); ++d)
    (d < int64_t(op.getDim()) ? outer : inner) *=
        d == int64_t(op.getDim()) ? 1 : type.getDimSize(d);
  SmallVector<Type> types;
  SmallVector<int64_t> widths;
  int64_t total = 0;
  for (Value input : op.getInputs()) {
    widths.push_back(cast<RankedTensorType>(input.getType()).getDimSize(op.getDim()) * inner);
    types.push_back(getBufferType(input, {outer, widths.back()}));
    total += widths.back();
  }
  types.push_back(getBufferType(op.getResult(), {outer, total}));
  func::FuncOp kernel = begin(op, types);
  Value out = kernel.getArgument(types.size() - 1);
  Builder builder = getBuilder(kernel);
  emitLoop(builder, outer, [&](Builder &b, Value row) {
    int64_t offset = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      emitLoop(b, widths[i], [&](Builder &at, Value column) {
        Value value = memref::LoadOp::create(at, kernel.getArgument(i), ValueRange{row, column});
        Value to = arith::AddIOp::create(at, column, emitIndex(at, offset));
        memref::StoreOp::create(at, value, out, ValueRange{row, to});
      });
      offset += widths[i];
    }
  });
  return {finish(kernel), SmallVector<Value>(op.getInputs())};
}

KernelInfo KernelScope::buildPad(dist::PadOp op) {
  auto from = cast<RankedTensorType>(op.getInput().getType());
  auto to = cast<RankedTensorType>(op.getResult().getType());
  func::FuncOp kernel = begin(op, {getBufferType(op.getInput()), getBufferType(op.getResult())});
  Value out = kernel.getArgument(1);
  Builder builder = getBuilder(kernel);
  Type type = getStorageType(from.getElementType());
  emitLoops(builder, to.getShape(), [&](Builder &b, ValueRange at) {
    memref::StoreOp::create(b, emitConstant(b, type, 0), out, at);
  });
  emitLoops(builder, from.getShape(), [&](Builder &b, ValueRange at) {
    Value value = memref::LoadOp::create(b, kernel.getArgument(0), at);
    memref::StoreOp::create(b, value, out, at);
  });
  return {finish(kernel), {op.getInput()}};
}

/// The features that rotate are pairs (a, b) in dimensions [.., 2, r/2], or
/// [.., r/2, 2] where they are interleaved. cos and sin broadcast.
KernelInfo KernelScope::buildRotary(nn::RotaryOp op) {
  auto type = cast<RankedTensorType>(op.getInput().getType());
  ArrayRef<int64_t> shape = type.getShape();
  int64_t rank = type.getRank(), features = shape.back();
  int64_t rotated = cast<RankedTensorType>(op.getCos().getType()).getShape().back();
  int64_t half = rotated / 2;
  Type compute = getComputeType(type.getElementType());
  func::FuncOp kernel = begin(op, {getBufferType(op.getInput()), getBufferType(op.getCos()),
                                   getBufferType(op.getSin()), getBufferType(op.getResult())});
  Value x = kernel.getArgument(0), out = kernel.getArgument(3);
  Builder builder = getBuilder(kernel);
  auto loadTable = [&](Builder &b, unsigned argument, ValueRange at, Value feature) {
    Value table = kernel.getArgument(argument);
    auto tableShape = cast<MemRefType>(table.getType()).getShape();
    SmallVector<Value> indices;
    for (size_t d = 0; d + 1 < tableShape.size(); ++d)
      indices.push_back(tableShape[d] == 1 ? emitIndex(b, 0) : at[rank - tableShape.size() + d]);
    indices.push_back(feature);
    return emitCast(b, emitLoad(b, table, indices), compute);
  };
  emitLoops(builder, shape.drop_back(), [&](Builder &row, ValueRange at) {
    auto indicesOf = [&](Value feature) {
      SmallVector<Value> indices(at);
      indices.push_back(feature);
      return indices;
    };
    emitLoop(row, half, [&](Builder &b, Value j) {
      Value first = j, second;
      if (op.getInterleaved()) {
        first = arith::MulIOp::create(b, j, emitIndex(b, 2));
        second = arith::AddIOp::create(b, first, emitIndex(b, 1));
      } else {
        second = arith::AddIOp::create(b, j, emitIndex(b, half));
      }
      Value a = emitLoad(b, x, indicesOf(first)), c = emitLoad(b, x, indicesOf(second));
      auto product = [&](Value value, unsigned table, Value feature) -> Value {
        return arith::MulFOp::create(b, value, loadTable(b, table, at, feature));
      };
      Value low = arith::SubFOp::create(b, product(a, 1, first), product(c, 2, first));
      Value high = arith::AddFOp::create(b, product(c, 1, second), product(a, 2, second));
      emitStore(b, low, out, indicesOf(first));
      emitStore(b, high, out, indicesOf(second));
    });
    if (rotated < features)
      emitLoop(row, features - rotated, [&](Builder &b, Value j) {
        Value feature = arith::AddIOp::create(b, j, emitIndex(b, rotated));
        Value value = memref::LoadOp::create(b, x, indicesOf(feature));
        memref::StoreOp::create(b, value, out, indicesOf(feature));
      });
  });
  return {finish(kernel), {op.getInput(), op.getCos(), op.getSin()}};
}

} // namespace meshwright::lower

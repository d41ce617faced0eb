//===- PagedMerge.cpp - attention over parts of the keys ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An item is a row of the result. It computes the weights of the parts, and adds the parts in their
// order. A part without a weight is not read.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/Cpu/VectorEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {
class PartsKernel : public VectorEmitter {
public:
  PartsKernel(nn::MergePartsOp op, int64_t vectorBytes)
      : VectorEmitter(op.getContext(), vectorBytes / (elementOf(op.getParts()).getIntOrFloatBitWidth() / 8),
                      elementOf(op.getResult()), elementOf(op.getParts())),
        op(op), shape(shapeOf(op.getParts())) {
    reserve(weights, shape[1], compute);
  }

  int64_t getItems() const { return shape[0] * shape[2] * shape[3]; }
  SmallVector<Value> getInputs() { return llvm::to_vector(op->getOperands()); }
  void emit(func::FuncOp kernel);

private:
  void emitRow(Value row);
  /// Emits columns from `column` on of the sum of the parts, of which the row is at `first`.
  void emitColumns(Value row, Value first, Value column, int64_t size);

  nn::MergePartsOp op;
  SmallVector<int64_t> shape;
  Region weights;
  Value parts, lses, sinks, result, lse;
};
} // namespace

void PartsKernel::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = 0;
  auto take = [&](Value value) { return value ? entry.getArgument(next++) : Value(); };
  parts = take(op.getParts());
  lses = take(op.getLses());
  sinks = take(op.getSinks());
  result = take(op.getResult());
  lse = take(op.getLse());
  Value begin = entry.getArgument(next), end = entry.getArgument(next + 1);
  bindWorkspace(entry.getArguments().back());
  loop(begin, end, 1, [&](Value row) { emitRow(row); });
}

void PartsKernel::emitRow(Value row) {
  int64_t rows = shape[2] * shape[3], count = shape[1];
  Value first = add(mul(div(row, rows), count * rows), rem(row, rows));
  auto atPart = [&](Value part) { return add(first, mul(part, rows)); };
  Value lowest = getScalar(-std::numeric_limits<double>::infinity()), zero = getScalar(0);
  Value largest = loop(getIndex(0), getIndex(count), 1, ValueRange{lowest}, [&](Value part, ValueRange known) {
                    return SmallVector<Value>{larger(known[0], loadScalar(lses, atPart(part)))};
                  }).front();
  auto getShift = [&](Value maximum) -> Value {
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, maximum, lowest);
    return arith::SelectOp::create(b, isEmpty, zero, maximum);
  };
  auto power = [&](Value number, Value shift) {
    return exp2(arith::MulFOp::create(b, arith::SubFOp::create(b, number, shift), getScalar(M_LOG2E)));
  };
  Value shift = getShift(largest);
  Value sum = loop(getIndex(0), getIndex(count), 1, ValueRange{zero}, [&](Value part, ValueRange known) {
                Value weight = power(loadScalar(lses, atPart(part)), shift);
                memref::StoreOp::create(b, weight, weights.buffer, part);
                return SmallVector<Value>{arith::AddFOp::create(b, known[0], weight).getResult()};
              }).front();
  if (lse)
    memref::StoreOp::create(b, arith::AddFOp::create(b, math::LogOp::create(b, sum), shift), lse, row);
  Value share = getScalar(1);
  Value total = sum;
  if (sinks) {
    Value sink = widen(loadScalar(sinks, rem(row, shape[3])));
    Value above = getShift(larger(largest, sink));
    share = power(shift, above);
    total = arith::AddFOp::create(b, arith::MulFOp::create(b, sum, share), power(sink, above));
  }
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
  Value factor = arith::SelectOp::create(b, isEmpty, zero, arith::DivFOp::create(b, share, total));
  loop(getIndex(0), getIndex(count), 1, [&](Value part) {
    Value scaled = arith::MulFOp::create(b, loadScalar(weights.buffer, part), factor);
    memref::StoreOp::create(b, scaled, weights.buffer, part);
  });
  int64_t columns = shape[4], whole = columns / lanes * lanes;
  loop(getIndex(0), getIndex(whole), lanes, [&](Value column) { emitColumns(row, first, column, lanes); });
  if (columns > whole)
    emitColumns(row, first, getIndex(whole), columns - whole);
}

void PartsKernel::emitColumns(Value row, Value first, Value column, int64_t size) {
  int64_t rows = shape[2] * shape[3], columns = shape[4];
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(getVector(size, compute)));
  Value sum = loop(getIndex(0), getIndex(shape[1]), 1, ValueRange{zeros}, [&](Value part, ValueRange known) {
                Value weight = loadScalar(weights.buffer, part);
                Value counts = arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, weight, getScalar(0));
                return choose(
                    counts,
                    [&] {
                      Value place = add(mul(add(first, mul(part, rows)), columns), column);
                      Value factor = vector::BroadcastOp::create(b, getVector(size, compute), weight);
                      return SmallVector<Value>{fma(load(parts, place, size), factor, known[0])};
                    },
                    [&] { return SmallVector<Value>{known[0]}; });
              }).front();
  store(narrow(sum), result, add(mul(row, columns), column));
}

std::optional<KernelInfo> KernelScope::buildMergeParts(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1 || !isa<nn::MergePartsOp>(*ops.begin()))
    return std::nullopt;
  auto op = cast<nn::MergePartsOp>(*ops.begin());
  PartsKernel emitter(op, kernels.getProcessor().vectorBytes);
  SmallVector<Type> types;
  KernelInfo info;
  info.inputs = emitter.getInputs();
  info.bytes = 0;
  for (ValueRange values : {ValueRange(op->getOperands()), ValueRange(op->getResults())})
    for (Value value : values) {
      types.push_back(getBufferType(value, {typeOf(value).getNumElements()}));
      info.bytes += typeOf(value).getNumElements() * (typeOf(value).getElementTypeBitWidth() / 8);
    }
  info.items = emitter.getItems();
  info.workspaceBytes = emitter.getWorkspaceBytes();
  info.flops = 2 * typeOf(op.getParts()).getNumElements();
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  func::FuncOp kernel = begin(op, types, info.workspaceBytes);
  emitter.emit(kernel);
  info.name = finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

//===- AttentionMerge.cpp - attention over two parts of the keys ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An item is as many rows as a vector has lanes. It computes the shares of the two parts for
// all of its rows at once, from the log-sum-exps of the parts. Then it computes each row in
// vectors. An item reads each element of its rows before it writes it, so the result may be in
// the place of one of the parts.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {
class MergeKernel {
public:
  MergeKernel(nn::MergeAttentionOp op, const Processor &processor)
      : compute(getElementTypeOrSelf(op.getLse().getType())) {
    auto type = cast<RankedTensorType>(op.getFirst().getType());
    columns = type.getShape().back();
    count = type.getNumElements();
    rows = cast<RankedTensorType>(op.getLse().getType()).getNumElements();
    lanes = processor.vectorBytes / getWidth();
  }

  int64_t getWidth() const { return compute.getIntOrFloatBitWidth() / 8; }
  int64_t getItems() const { return llvm::divideCeil(rows, lanes); }
  int64_t getWorkspaceBytes() const { return 2 * lanes * getWidth(); }

  /// `arguments` are buffers of the operands and the results, the items' bounds and the
  /// workspace.
  void emit(Builder &builder, ValueRange arguments);

  int64_t rows, columns, count, lanes;

private:
  /// Emits `size` rows from `row` on.
  void emitRows(Value row, int64_t size);
  /// Emits `size` columns of a row, given the shares of the parts.
  void emitColumns(Value at, Value ofFirst, Value ofSecond, int64_t size);
  /// Stores the share of a part in `sum`; zero if the sum is zero.
  void storeShares(Value powers, Value sum, Value shares);

  Value load(Value buffer, Value index, int64_t size) {
    Type type = cast<MemRefType>(buffer.getType()).getElementType();
    Value vector = vector::LoadOp::create(*b, VectorType::get(size, type), buffer, index);
    return emitCast(*b, vector, compute);
  }
  Value isEqual(Value vector, double value) {
    return arith::CmpFOp::create(*b, arith::CmpFPredicate::OEQ, vector,
                                 emitConstant(*b, vector.getType(), value));
  }

  Type compute;
  Builder *b = nullptr;
  Value first, firstLse, second, secondLse, result, lse, firstShares, secondShares;
};
} // namespace

void MergeKernel::emit(Builder &builder, ValueRange arguments) {
  b = &builder;
  Value *buffers[] = {&first, &firstLse, &second, &secondLse, &result, &lse};
  for (auto [i, buffer] : llvm::enumerate(buffers))
    *buffer = arguments[i];
  Value *shares[] = {&firstShares, &secondShares};
  for (auto [i, share] : llvm::enumerate(shares))
    *share = memref::ViewOp::create(builder, MemRefType::get({lanes}, compute), arguments.back(),
                                    emitIndex(builder, i * lanes * getWidth()), ValueRange());
  auto loop = scf::ForOp::create(builder, arguments[6], arguments[7], emitIndex(builder, 1));
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(loop.getBody());
  Value item = loop.getInductionVar();
  Value row = arith::MulIOp::create(builder, item, emitIndex(builder, lanes));
  int64_t rest = rows % lanes;
  if (rest == 0)
    return emitRows(row, lanes);
  if (rows < lanes)
    return emitRows(row, rest);
  Value isLast = arith::CmpIOp::create(builder, arith::CmpIPredicate::eq, item,
                                       emitIndex(builder, getItems() - 1));
  auto choice = scf::IfOp::create(builder, isLast, /*withElseRegion=*/true);
  builder.setInsertionPointToStart(choice.thenBlock());
  emitRows(row, rest);
  builder.setInsertionPointToStart(choice.elseBlock());
  emitRows(row, lanes);
}

void MergeKernel::storeShares(Value powers, Value sum, Value shares) {
  Value zero = emitConstant(*b, sum.getType(), 0);
  Value share = arith::DivFOp::create(*b, powers, sum);
  share = arith::SelectOp::create(*b, isEqual(sum, 0), zero, share);
  vector::StoreOp::create(*b, share, shares, emitIndex(*b, 0));
}

void MergeKernel::emitRows(Value row, int64_t size) {
  Value x = load(firstLse, row, size), y = load(secondLse, row, size);
  Value above = arith::CmpFOp::create(*b, arith::CmpFPredicate::OGT, x, y);
  Value largest = arith::SelectOp::create(*b, above, x, y);
  // If neither part has a key, nothing is subtracted, and -inf remains.
  Value shift =
      arith::SelectOp::create(*b, isEqual(largest, -std::numeric_limits<double>::infinity()),
                              emitConstant(*b, x.getType(), 0), largest);
  auto power = [&](Value exponent) {
    Value difference = arith::SubFOp::create(*b, exponent, shift);
    return emitExp2(*b,
                    arith::MulFOp::create(*b, difference, emitConstant(*b, x.getType(), M_LOG2E)));
  };
  Value powerOfFirst = power(x), powerOfSecond = power(y);
  Value sum = arith::AddFOp::create(*b, powerOfFirst, powerOfSecond);
  storeShares(powerOfFirst, sum, firstShares);
  storeShares(powerOfSecond, sum, secondShares);
  Value logarithm = arith::AddFOp::create(*b, math::LogOp::create(*b, sum), shift);
  vector::StoreOp::create(*b, logarithm, lse, row);

  auto loop = scf::ForOp::create(*b, emitIndex(*b, 0), emitIndex(*b, size), emitIndex(*b, 1));
  OpBuilder::InsertionGuard guard(*b);
  b->setInsertionPointToStart(loop.getBody());
  Value lane = loop.getInductionVar();
  Value ofFirst = memref::LoadOp::create(*b, firstShares, lane);
  Value ofSecond = memref::LoadOp::create(*b, secondShares, lane);
  Value from =
      arith::MulIOp::create(*b, arith::AddIOp::create(*b, row, lane), emitIndex(*b, columns));
  int64_t rest = columns % lanes;
  if (columns > rest) {
    auto vectors = scf::ForOp::create(*b, emitIndex(*b, 0), emitIndex(*b, columns - rest),
                                      emitIndex(*b, lanes));
    OpBuilder::InsertionGuard guard(*b);
    b->setInsertionPointToStart(vectors.getBody());
    emitColumns(arith::AddIOp::create(*b, from, vectors.getInductionVar()), ofFirst, ofSecond,
                lanes);
  }
  if (rest)
    emitColumns(arith::AddIOp::create(*b, from, emitIndex(*b, columns - rest)), ofFirst, ofSecond,
                rest);
}

void MergeKernel::emitColumns(Value at, Value ofFirst, Value ofSecond, int64_t size) {
  auto type = VectorType::get(size, compute);
  auto scale = [&](Value buffer, Value share) -> Value {
    return arith::MulFOp::create(*b, load(buffer, at, size),
                                 vector::BroadcastOp::create(*b, type, share));
  };
  Value merged = arith::AddFOp::create(*b, scale(first, ofFirst), scale(second, ofSecond));
  Type stored = cast<MemRefType>(result.getType()).getElementType();
  vector::StoreOp::create(*b, emitCast(*b, merged, stored), result, at);
}

std::optional<KernelInfo> KernelScope::buildMerge(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1 || !isa<nn::MergeAttentionOp>(*ops.begin()))
    return std::nullopt;
  auto op = cast<nn::MergeAttentionOp>(*ops.begin());
  MergeKernel emitter(op, kernels.getProcessor());
  SmallVector<Type> types;
  KernelInfo info;
  info.bytes = 0;
  for (ValueRange values : {ValueRange(op->getOperands()), ValueRange(op->getResults())})
    for (Value value : values) {
      auto type = cast<RankedTensorType>(value.getType());
      types.push_back(getBufferType(value, {type.getNumElements()}));
      info.bytes += type.getNumElements() * (type.getElementTypeBitWidth() / 8);
    }
  info.inputs = SmallVector<Value>(op->getOperands());
  info.items = emitter.getItems();
  info.workspaceBytes = emitter.getWorkspaceBytes();
  info.flops = 3 * emitter.count;
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  func::FuncOp kernel = begin(op, types, info.workspaceBytes);
  if (emitter.rows > 0) {
    Builder builder = getBuilder(kernel);
    emitter.emit(builder, kernel.getArguments());
  }
  info.name = finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

//===- AttentionMerge.cpp - attention over two parts of the keys, on GPUs -===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Some neighbouring threads compute a row: each the shares of the two parts, and chunks of
// columns. A thread reads each element before it writes it, so the result may be in the place of
// one of the parts.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>
#include <limits>
#include <numeric>

using namespace mlir;

namespace meshwright::lower {

namespace {
class MergeRows : LoopEmitter {
public:
  explicit MergeRows(nn::MergeAttentionOp op)
      : LoopEmitter(op.getContext()), element(getElementTypeOrSelf(op.getFirst().getType())),
        compute(getElementTypeOrSelf(op.getLse().getType())) {
    columns = cast<RankedTensorType>(op.getFirst().getType()).getShape().back();
    rows = cast<RankedTensorType>(op.getLse().getType()).getNumElements();
    width = std::gcd<int64_t>(columns, 128 / element.getIntOrFloatBitWidth());
    int64_t chunks = columns / std::max<int64_t>(width, 1);
    group = std::min<int64_t>(llvm::PowerOf2Ceil(std::max<int64_t>(chunks, 1)), threads);
  }

  int64_t getNumBlocks() const { return llvm::divideCeil(rows, threads / group); }
  /// `arguments` are buffers of the operands and the results.
  void emit(func::FuncOp kernel);

  static constexpr int64_t threads = 128;
  int64_t rows, columns;

private:
  void emitRow(Value row, Value lane);
  Value isEqual(Value value, double number) {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, value,
                                 emitConstant(b, compute, number));
  }

  Type element, compute;
  int64_t width, group;
  Value first, firstLse, second, secondLse, result, lse;
};
} // namespace

void MergeRows::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  Value *buffers[] = {&first, &firstLse, &second, &secondLse, &result, &lse};
  for (auto [i, buffer] : llvm::enumerate(buffers))
    *buffer = entry.getArgument(i);
  Value thread = emitThread(b, threads), block = emitBlock(b, getNumBlocks());
  Value row = add(mul(block, threads / group), div(thread, group));
  when(isBelow(row, getIndex(rows)), [&] { emitRow(row, rem(thread, group)); });
}

void MergeRows::emitRow(Value row, Value lane) {
  Value x = memref::LoadOp::create(b, firstLse, row);
  Value y = memref::LoadOp::create(b, secondLse, row);
  Value above = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, x, y);
  Value largest = arith::SelectOp::create(b, above, x, y);
  Value zero = emitConstant(b, compute, 0);
  // If neither part has a key, nothing is subtracted, and -inf remains.
  Value shift = arith::SelectOp::create(
      b, isEqual(largest, -std::numeric_limits<double>::infinity()), zero, largest);
  auto power = [&](Value exponent) {
    Value difference = arith::SubFOp::create(b, exponent, shift);
    return emitExp2(b, arith::MulFOp::create(b, difference, emitConstant(b, compute, M_LOG2E)));
  };
  Value powers[] = {power(x), power(y)}, shares[2];
  Value sum = arith::AddFOp::create(b, powers[0], powers[1]);
  for (int64_t i : {0, 1})
    shares[i] = arith::SelectOp::create(b, isEqual(sum, 0), zero,
                                        arith::DivFOp::create(b, powers[i], sum));
  when(arith::CmpIOp::create(b, arith::CmpIPredicate::eq, lane, getIndex(0)), [&] {
    Value logarithm = arith::AddFOp::create(b, math::LogOp::create(b, sum), shift);
    memref::StoreOp::create(b, logarithm, lse, row);
  });
  Value base = mul(row, columns);
  loop(lane, getIndex(columns / std::max<int64_t>(width, 1)), group, [&](Value chunk) {
    Value at = add(base, mul(chunk, width));
    auto scale = [&](Value buffer, Value share) -> Value {
      Type stored = cast<MemRefType>(buffer.getType()).getElementType();
      Value part = vector::LoadOp::create(b, VectorType::get(width, stored), buffer, at);
      part = emitCast(b, fromRowStorage(b, part, element), compute);
      return arith::MulFOp::create(b, part,
                                   vector::BroadcastOp::create(b, part.getType(), share));
    };
    Value merged = arith::AddFOp::create(b, scale(first, shares[0]), scale(second, shares[1]));
    vector::StoreOp::create(b, toRowStorage(b, emitCast(b, merged, element)), result, at);
  });
}

std::optional<KernelInfo> GpuKernelBuilder::buildMerge(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::MergeAttentionOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  MergeRows emitter(op);
  KernelInfo info;
  info.inputs = SmallVector<Value>(op->getOperands());
  info.items = emitter.getNumBlocks();
  info.grain = MergeRows::threads;
  info.flops = 3 * emitter.rows * emitter.columns;
  func::FuncOp kernel = begin(launch, info.inputs, /*sharedBytes=*/0, info.grain);
  if (info.items > 0)
    emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

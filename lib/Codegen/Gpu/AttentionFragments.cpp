//===- AttentionFragments.cpp - scores in fragments, on GPUs --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace meshwright::lower {

AttentionFragments::AttentionFragments(const AttentionLaunch &launch,
                                       const AttentionTilePlan &plan)
    : AttentionTiles(launch, plan), stored(getRowStorageType(plan.element)),
      resultStride(plan.sliceFeatures + gap) {}

Value AttentionFragments::getRowOffset(int64_t row) {
  return add(add(mul(warp(), depth), div(lane(), 4)), row * 8);
}

Value AttentionFragments::getKeyOffset(int64_t key) {
  return add(mul(quad, 2), key / 2 * 8 + key % 2);
}

SmallVector<Value> AttentionFragments::getZeros() {
  return SmallVector<Value>(plan.sliceFeatures / 8 * 4, emitConstant(b, b.getF32Type(), 0));
}

SmallVector<Value> AttentionFragments::getScores(ArrayRef<Value> sums) {
  SmallVector<Value> scores;
  for (int64_t second : {0, 2})
    for (size_t i = 0; i < sums.size(); i += 4)
      scores.append({sums[i + second], sums[i + second + 1]});
  return scores;
}

SmallVector<Value> AttentionFragments::getLeft(ValueRange shares, int64_t key) {
  SmallVector<Value> left;
  for (int64_t half : {0, 2})
    for (int64_t row : {0, 1}) {
      int64_t first = row * plan.keysOfThread + key / 4 + half;
      left.push_back(emitPair(b, plan.element, shares[first], shares[first + 1]));
    }
  return left;
}

SmallVector<Value> AttentionFragments::scale(ValueRange result, ValueRange scales) {
  SmallVector<Value> sums;
  for (auto [i, sum] : llvm::enumerate(result))
    sums.push_back(arith::MulFOp::create(b, sum, scales[i % 4 / 2]));
  return sums;
}

void AttentionFragments::emitWideResult(ValueRange factors, ValueRange sums) {
  for (size_t i = 0; i < sums.size(); ++i) {
    const Row &row = rows[i % 4 / 2];
    Value column = add(firstFeature, add(mul(quad, 2), i / 4 * 8 + i % 2)), exists = row.exists;
    if (plan.valueFeatures % plan.sliceFeatures)
      exists = both(exists, isBelow(column, getIndex(plan.valueFeatures)));
    auto store = [&] {
      Value scaled = arith::MulFOp::create(b, sums[i], factors[i % 4 / 2]);
      memref::StoreOp::create(b, scaled, result, add(mul(getResultRow(row.index), plan.valueFeatures), column));
    };
    exists ? when(exists, store) : store();
  }
}

/// Through shared memory, so that accesses are as wide as those of operands.
void AttentionFragments::emitResult(ValueRange factors, ValueRange sums) {
  if (plan.resultElement != plan.element)
    return emitWideResult(factors, sums);
  Value tile = getResultTile();
  auto pair = VectorType::get(2, stored);
  for (size_t i = 0; i < sums.size(); i += 2) {
    int64_t row = i % 4 / 2, column = i / 4 * 8;
    Value low = arith::MulFOp::create(b, sums[i], factors[row]);
    Value high = arith::MulFOp::create(b, sums[i + 1], factors[row]);
    Value narrowed = LLVM::BitcastOp::create(b, pair, emitPair(b, plan.element, low, high));
    vector::StoreOp::create(
        b, narrowed, tile,
        add(mul(getRowOffset(row), resultStride), add(mul(quad, 2), column)));
  }
  synchronize();
  int64_t width = getWidth(plan.element, plan.valueFeatures);
  int64_t line = plan.valueFeatures * bytes;
  forEachChunk(groupRows, plan.sliceFeatures, width, bytes, line, [&](Value row, Value column) {
    Value toRow = add(firstRow, row), toColumn = add(firstFeature, column), exists;
    if (Value end = getEndOfRows())
      exists = isBelow(toRow, end);
    if (plan.valueFeatures % plan.sliceFeatures)
      exists = both(exists, isBelow(toColumn, getIndex(plan.valueFeatures)));
    auto copy = [&] {
      Value chunk = vector::LoadOp::create(b, VectorType::get(width, stored), tile,
                                           add(mul(row, resultStride), column));
      vector::StoreOp::create(b, chunk, result,
                              add(mul(getResultRow(toRow), plan.valueFeatures), toColumn));
    };
    exists ? when(exists, copy) : copy();
  });
}

} // namespace meshwright::lower

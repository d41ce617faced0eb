//===- AttentionFma.cpp - attention by multiply-add, on GPUs --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Four lanes compute a row: its scores with every fourth key, and every fourth group of four
// features of the result. Queries, keys, values and shares are in shared memory, widened to the
// type of arithmetic. Rows are padded, so that lanes of a warp read different banks.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionProducts.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

AttentionFma::AttentionFma(const AttentionLaunch &launch, const AttentionTilePlan &plan)
    : AttentionTiles(launch, plan) {
  bytes = plan.compute.getIntOrFloatBitWidth() / 8;
  features = std::min<int64_t>(plan.compute.isF64() ? 64 : 128,
                               llvm::alignTo(plan.features, 16));
  queryStride = features + lanes;
  keyStride = std::max(features, plan.sliceFeatures) + lanes;
  shareStride = plan.blockKeys + lanes;
  keyOffset = plan.blockRows * queryStride * bytes;
  shareOffset = keyOffset + plan.blockKeys * keyStride * bytes;
}

Value AttentionFma::loadShared(Value buffer, Value index) {
  return vector::LoadOp::create(b, getVector(), buffer, index);
}

Value AttentionFma::splat(Value scalar) { return vector::BroadcastOp::create(b, getVector(), scalar); }

void AttentionFma::copyColumns(Tile tile, Value first, Value to, int64_t stride) {
  tile.firstColumn = first;
  tile.tileColumns = features;
  copyTile(tile, to, stride, plan.compute);
}

void AttentionFma::emitQueries() {
  queries = getShared(0, plan.blockRows * queryStride, plan.compute);
  keys = getShared(keyOffset, plan.blockKeys * keyStride, plan.compute);
  shareBuffer = getShared(shareOffset, plan.blockRows * shareStride, plan.compute);
  if (isWhole())
    copyColumns(getQueryTile(), getIndex(0), queries, queryStride);
}

SmallVector<Value> AttentionFma::getZeros() {
  int64_t count = plan.sliceFeatures / (lanes * lanes);
  return SmallVector<Value>(count, emitConstant(b, getVector(), 0));
}

SmallVector<Value> AttentionFma::addProducts(ValueRange sums) {
  Value row = mul(getRowOffset(0), queryStride);
  return loop(getIndex(0), getIndex(features), lanes, sums, [&](Value at, ValueRange known) {
    Value own = loadShared(queries, add(row, at));
    SmallVector<Value> next;
    for (auto [i, sum] : llvm::enumerate(known)) {
      Value other = loadShared(keys, add(mul(getKeyOffset(i), keyStride), at));
      next.push_back(math::FmaOp::create(b, own, other, sum));
    }
    return next;
  });
}

SmallVector<Value> AttentionFma::emitProducts() {
  SmallVector<Value> sums(plan.keysOfThread, emitConstant(b, getVector(), 0));
  auto emitStep = [&](Value first, ValueRange known) {
    if (!isWhole())
      copyColumns(getQueryTile(), first, queries, queryStride);
    copyColumns(getKeyTile(), first, keys, keyStride);
    emitBarrier(b);
    SmallVector<Value> next = addProducts(known);
    emitBarrier(b);
    return next;
  };
  sums = isWhole() ? emitStep(getIndex(0), sums)
                   : loop(getIndex(0), getIndex(plan.features), features, sums, emitStep);
  for (Value &sum : sums)
    sum = vector::ReductionOp::create(b, vector::CombiningKind::ADD, sum);
  return sums;
}

SmallVector<Value> AttentionFma::emitValues(ValueRange shares, ValueRange scales,
                                            ValueRange result) {
  Value row = mul(getRowOffset(0), shareStride);
  for (auto [i, share] : llvm::enumerate(shares))
    memref::StoreOp::create(b, share, shareBuffer, add(row, getKeyOffset(i)));
  copyTile(getValueTile(), keys, keyStride, plan.compute);
  emitBarrier(b);
  SmallVector<Value> sums = scale(result, scales);
  sums = loop(getIndex(0), getIndex(plan.blockKeys), 1, sums, [&](Value key, ValueRange known) {
    Value share = splat(memref::LoadOp::create(b, shareBuffer, add(row, key)));
    Value at = add(mul(key, keyStride), mul(quad, lanes));
    SmallVector<Value> next;
    for (auto [i, sum] : llvm::enumerate(known))
      next.push_back(
          math::FmaOp::create(b, share, loadShared(keys, add(at, i * lanes * lanes)), sum));
    return next;
  });
  emitBarrier(b);
  return sums;
}

SmallVector<Value> AttentionFma::scale(ValueRange result, ValueRange scales) {
  SmallVector<Value> sums;
  Value factor = splat(scales.front());
  for (Value sum : result)
    sums.push_back(arith::MulFOp::create(b, sum, factor));
  return sums;
}

void AttentionFma::emitResult(ValueRange factors, ValueRange sums) {
  const Row &row = rows.front();
  Value base = mul(getResultRow(row.index), plan.valueFeatures);
  Value factor = splat(factors.front());
  auto store = [&](Value value, Value column) {
    Value exists = row.exists;
    if (plan.valueFeatures % plan.sliceFeatures)
      exists = both(exists, isBelow(column, getIndex(plan.valueFeatures)));
    auto emit = [&] { vector::StoreOp::create(b, value, result, add(base, column)); };
    exists ? when(exists, emit) : emit();
  };
  for (auto [i, sum] : llvm::enumerate(sums)) {
    Value scaled = emitCast(b, arith::MulFOp::create(b, sum, factor), plan.resultElement);
    scaled = toRowStorage(b, scaled);
    Value column = add(firstFeature, add(mul(quad, lanes), i * lanes * lanes));
    if (plan.valueFeatures % lanes == 0) {
      store(scaled, column);
      continue;
    }
    for (int64_t j = 0; j < lanes; ++j)
      store(vector::ExtractStridedSliceOp::create(b, scaled, j, 1, 1), add(column, j));
  }
}

std::unique_ptr<AttentionTiles> makeAttentionFma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan) {
  return std::make_unique<AttentionFma>(launch, plan);
}

} // namespace meshwright::lower

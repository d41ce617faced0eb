//===- AttentionMma.cpp - attention by mma.sync, on GPUs ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A warp computes 16 rows by products of 16 x 16 times 16 x 8 elements, with sums in f32. In the
// fragment of a sum a lane has two neighbouring columns of the rows l / 4 and l / 4 + 8. Two such
// fragments, narrowed, are the left operand of the next product, so shares stay in registers.
//
// Queries stay in registers. Keys and values are copied to shared memory tile by tile and read as
// fragments by ldmatrix. Rows there are padded by 16 bytes, so that no two rows of a fragment are
// in the same banks.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

namespace {
class AttentionMma final : public AttentionTiles {
public:
  AttentionMma(const AttentionLaunch &launch, const AttentionTilePlan &plan)
      : AttentionTiles(launch, plan), stored(getRowStorageType(plan.element)),
        features(llvm::alignTo(plan.features, depth)), keyStride(features + gap),
        valueStride(plan.sliceFeatures + gap), valueOffset(plan.blockKeys * keyStride * bytes) {
  }

  int64_t getSharedBytes() const override {
    return std::max({plan.blockRows * keyStride * bytes,
                     valueOffset + plan.blockKeys * valueStride * bytes,
                     plan.blockRows * valueStride * bytes});
  }

private:
  Value getRowOffset(int64_t row) override {
    return add(add(mul(warp(), depth), div(lane(), 4)), row * 8);
  }
  Value getKeyOffset(int64_t key) override {
    return add(mul(quad, 2), key / 2 * 8 + key % 2);
  }
  void emitQueries() override;
  SmallVector<Value> getZeros() override;
  SmallVector<Value> emitProducts() override;
  SmallVector<Value> emitValues(ValueRange shares, ValueRange scales, ValueRange result) override;
  void emitResult(ValueRange factors, ValueRange result) override;

  Value warp() { return div(thread, 32); }
  Value lane() { return rem(thread, 32); }

  static constexpr int64_t depth = 16, gap = 8, bytes = 2;
  Type stored;
  int64_t features, keyStride, valueStride, valueOffset;
  Value keys, values;
  /// The fragments of the warp's queries, four for each 16 features.
  SmallVector<SmallVector<Value>> queries;
};
} // namespace

void AttentionMma::emitQueries() {
  Value tile = getShared(0, plan.blockRows * keyStride, stored);
  Tile source = getQueryTile();
  source.tileColumns = features;
  copyTile(source, tile, keyStride, stored);
  emitBarrier(b);
  Value row = add(mul(warp(), depth), rem(lane(), depth));
  Value at = add(mul(row, keyStride), mul(div(lane(), depth), 8));
  for (int64_t feature = 0; feature < features; feature += depth)
    queries.push_back(emitLoadFragments(b, tile, add(at, feature), /*transposed=*/false));
  emitBarrier(b);
  keys = getShared(0, plan.blockKeys * keyStride, stored);
  values = getShared(valueOffset, plan.blockKeys * valueStride, stored);
}

SmallVector<Value> AttentionMma::getZeros() {
  return SmallVector<Value>(plan.sliceFeatures / 8 * 4, emitConstant(b, b.getF32Type(), 0));
}

SmallVector<Value> AttentionMma::emitProducts() {
  Tile source = getKeyTile();
  source.tileColumns = features;
  copyTile(source, keys, keyStride, stored);
  copyTile(getValueTile(), values, valueStride, stored);
  emitBarrier(b);
  // Fragments of 8 keys, with two keys of two rows each.
  SmallVector<Value> sums(plan.blockKeys / 8 * 4, emitConstant(b, b.getF32Type(), 0));
  auto sumsOf = [&](int64_t key) { return MutableArrayRef<Value>(sums).slice(key / 8 * 4, 4); };
  Value row = add(rem(lane(), 8), mul(div(lane(), 16), 8));
  Value at = add(mul(row, keyStride), mul(rem(div(lane(), 8), 2), 8));
  for (auto [i, left] : llvm::enumerate(queries))
    for (int64_t key = 0; key < plan.blockKeys; key += 16) {
      SmallVector<Value> right =
          emitLoadFragments(b, keys, add(at, key * keyStride + i * depth), /*transposed=*/false);
      emitMma(b, plan.element, left, ArrayRef(right).take_front(2), sumsOf(key));
      emitMma(b, plan.element, left, ArrayRef(right).drop_front(2), sumsOf(key + 8));
    }
  SmallVector<Value> products;
  for (int64_t second : {0, 2})
    for (size_t i = 0; i < sums.size(); i += 4)
      products.append({sums[i + second], sums[i + second + 1]});
  return products;
}

SmallVector<Value> AttentionMma::emitValues(ValueRange shares, ValueRange scales,
                                            ValueRange result) {
  SmallVector<Value> sums;
  for (auto [i, sum] : llvm::enumerate(result))
    sums.push_back(arith::MulFOp::create(b, sum, scales[i % 4 / 2]));
  auto sumsOf = [&](int64_t feature) {
    return MutableArrayRef<Value>(sums).slice(feature / 8 * 4, 4);
  };
  Value at = add(mul(rem(lane(), depth), valueStride), mul(div(lane(), depth), 8));
  for (int64_t key = 0; key < plan.blockKeys; key += depth) {
    SmallVector<Value> left;
    for (int64_t half : {0, 2})
      for (int64_t row : {0, 1}) {
        int64_t first = row * plan.keysOfThread + key / 4 + half;
        left.push_back(emitPair(b, plan.element, shares[first], shares[first + 1]));
      }
    for (int64_t feature = 0; feature < plan.sliceFeatures; feature += 16) {
      SmallVector<Value> right =
          emitLoadFragments(b, values, add(at, key * valueStride + feature), /*transposed=*/true);
      emitMma(b, plan.element, left, ArrayRef(right).take_front(2), sumsOf(feature));
      emitMma(b, plan.element, left, ArrayRef(right).drop_front(2), sumsOf(feature + 8));
    }
  }
  emitBarrier(b);
  return sums;
}

/// Through shared memory, so that accesses are as wide as those of operands.
void AttentionMma::emitResult(ValueRange factors, ValueRange sums) {
  Value tile = getShared(0, plan.blockRows * valueStride, stored);
  auto pair = VectorType::get(2, stored);
  for (size_t i = 0; i < sums.size(); i += 2) {
    int64_t row = i % 4 / 2, column = i / 4 * 8;
    Value low = arith::MulFOp::create(b, sums[i], factors[row]);
    Value high = arith::MulFOp::create(b, sums[i + 1], factors[row]);
    Value narrowed = LLVM::BitcastOp::create(b, pair, emitPair(b, plan.element, low, high));
    vector::StoreOp::create(
        b, narrowed, tile,
        add(mul(getRowOffset(row), valueStride), add(mul(quad, 2), column)));
  }
  emitBarrier(b);
  int64_t width = getWidth(plan.element, plan.valueFeatures);
  Value base = mul(unit, plan.rows * plan.valueFeatures);
  forEachChunk(plan.blockRows, plan.sliceFeatures, width, [&](Value row, Value column) {
    Value toRow = add(firstRow, row), toColumn = add(firstFeature, column), exists;
    if (plan.rows % plan.blockRows)
      exists = isBelow(toRow, getIndex(plan.rows));
    if (plan.valueFeatures % plan.sliceFeatures)
      exists = both(exists, isBelow(toColumn, getIndex(plan.valueFeatures)));
    auto copy = [&] {
      Value chunk = vector::LoadOp::create(b, VectorType::get(width, stored), tile,
                                           add(mul(row, valueStride), column));
      vector::StoreOp::create(b, chunk, result,
                              add(base, add(mul(toRow, plan.valueFeatures), toColumn)));
    };
    exists ? when(exists, copy) : copy();
  });
}

std::unique_ptr<AttentionTiles> makeAttentionMma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan) {
  return std::make_unique<AttentionMma>(launch, plan);
}

} // namespace meshwright::lower

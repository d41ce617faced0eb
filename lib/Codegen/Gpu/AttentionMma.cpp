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

#include "meshwright/lib/Codegen/Gpu/AttentionProducts.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

AttentionMma::AttentionMma(const AttentionLaunch &launch, const AttentionTilePlan &plan)
    : AttentionFragments(launch, plan), features(llvm::alignTo(plan.features, depth)),
      keyStride(features + gap), valueOffset(plan.blockKeys * keyStride * bytes) {}

int64_t AttentionMma::getSharedBytes() const {
  return std::max({plan.blockRows * keyStride * bytes,
                   valueOffset + plan.blockKeys * resultStride * bytes,
                   plan.blockRows * resultStride * bytes});
}

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
  values = getShared(valueOffset, plan.blockKeys * resultStride, stored);
}

SmallVector<Value> AttentionMma::emitProducts() {
  Tile source = getKeyTile();
  source.tileColumns = features;
  copyTile(source, keys, keyStride, stored);
  copyTile(getValueTile(), values, resultStride, stored);
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
  return getScores(sums);
}

SmallVector<Value> AttentionMma::emitValues(ValueRange shares, ValueRange scales,
                                            ValueRange result) {
  SmallVector<Value> sums = scale(result, scales);
  auto sumsOf = [&](int64_t feature) {
    return MutableArrayRef<Value>(sums).slice(feature / 8 * 4, 4);
  };
  Value at = add(mul(rem(lane(), depth), resultStride), mul(div(lane(), depth), 8));
  for (int64_t key = 0; key < plan.blockKeys; key += depth) {
    SmallVector<Value> left = getLeft(shares, key);
    for (int64_t feature = 0; feature < plan.sliceFeatures; feature += 16) {
      SmallVector<Value> right =
          emitLoadFragments(b, values, add(at, key * resultStride + feature), /*transposed=*/true);
      emitMma(b, plan.element, left, ArrayRef(right).take_front(2), sumsOf(feature));
      emitMma(b, plan.element, left, ArrayRef(right).drop_front(2), sumsOf(feature + 8));
    }
  }
  emitBarrier(b);
  return sums;
}

std::unique_ptr<AttentionTiles> makeAttentionMma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan) {
  return std::make_unique<AttentionMma>(launch, plan);
}

} // namespace meshwright::lower

//===- AttentionProducts.h - ways to multiply of attention ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention by multiply-add and by mma.sync. Both are bases: kernels of other ops give them their own rows, masks and
// places in memory.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONPRODUCTS_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONPRODUCTS_H

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"

namespace meshwright::lower {

/// Products by FMA, for all types and all sizes of heads.
class AttentionFma : public AttentionTiles {
public:
  AttentionFma(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  int64_t getSharedBytes() const override {
    return shareOffset + plan.blockRows * shareStride * bytes;
  }

protected:
  Value getRowOffset(int64_t) override { return div(thread, lanes); }
  Value getKeyOffset(int64_t key) override { return add(quad, key * lanes); }
  void emitQueries() override;
  SmallVector<Value> getZeros() override;
  SmallVector<Value> emitProducts() override;
  SmallVector<Value> emitValues(ValueRange shares, ValueRange scales, ValueRange result) override;
  SmallVector<Value> scale(ValueRange result, ValueRange scales) override;
  void emitResult(ValueRange factors, ValueRange result) override;

private:
  bool isWhole() const { return features >= plan.features; }
  mlir::VectorType getVector() { return mlir::VectorType::get(lanes, plan.compute); }
  Value loadShared(Value buffer, Value index);
  Value splat(Value scalar);
  /// Copies a tile's columns from `first` on, as many as shared memory has room for.
  void copyColumns(Tile tile, Value first, Value to, int64_t stride);
  /// Adds products over the features that are in shared memory.
  SmallVector<Value> addProducts(ValueRange sums);

  /// Lanes of a row, and elements of a vector.
  static constexpr int64_t lanes = 4;
  /// Bytes of an element, and features of queries and keys that are in shared memory at a time.
  int64_t bytes, features;
  int64_t queryStride, keyStride, shareStride, keyOffset, shareOffset;
  Value queries, keys, shareBuffer;
};

/// Products by mma.sync, for bf16 and f16.
class AttentionMma : public AttentionFragments {
public:
  AttentionMma(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  int64_t getSharedBytes() const override;

protected:
  void emitQueries() override;
  SmallVector<Value> emitProducts() override;
  SmallVector<Value> emitValues(ValueRange shares, ValueRange scales, ValueRange result) override;
  Value getResultTile() override { return getShared(0, groupRows * resultStride, stored); }

private:
  int64_t features, keyStride, valueOffset;
  Value keys, values;
  /// The fragments of the warp's queries, four for each 16 features.
  SmallVector<SmallVector<Value>> queries;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONPRODUCTS_H

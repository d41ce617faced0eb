//===- AttentionEmitter.h - attention on GPUs -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block of threads computes some rows of queries, and goes over the keys tile by tile. It keeps
// the running maximum and sum of each row, and the result so far, in registers.
//
// Masks, maxima and sums need only that four neighbouring lanes have the scores of a row, so they
// are the same for all ways to multiply (`AttentionFma`, `AttentionMma`, `AttentionWgmma`).
//
// A tile whose scores are all hidden is left out: the block finds out by one barrier, before it
// reads keys. So masks of all kinds leave out blocks, also those that come from memory.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H

#include "meshwright/lib/Codegen/Gpu/AttentionBlock.h"
#include "meshwright/lib/Codegen/KernelSource.h"

#include <memory>

namespace meshwright::lower {

/// Emits the kernel of one nn.attention.
class AttentionTiles : public AttentionBlock {
protected:
  using AttentionBlock::AttentionBlock;

  /// Prepares the queries of the block.
  virtual void emitQueries() = 0;
  /// The registers of the result, all zeros.
  virtual SmallVector<Value> getZeros() = 0;
  /// Products of the thread's rows and keys, `keysOfThread` for each row. Other threads may still
  /// read shared memory of a tile before this, but not behind it.
  virtual SmallVector<Value> emitProducts() = 0;
  /// The result times the scale of each row, plus shares times values.
  virtual SmallVector<Value> emitValues(ValueRange shares, ValueRange scales,
                                        ValueRange result) = 0;
  /// The result times the scale of each row.
  virtual SmallVector<Value> scale(ValueRange result, ValueRange scales) = 0;
  /// Stores the result times the factor of each row.
  virtual void emitResult(ValueRange factors, ValueRange result) = 0;
  /// Passes over a tile that is hidden.
  virtual void emitHidden() {}
  /// Orders shared memory of the threads that have the rows, and whether `value` is true in any of
  /// them.
  virtual void synchronize();
  virtual Value isAny(Value value);

  int64_t getScratchBytes() override;
  void emitBlock(Value block) override;
  /// Finds the unit and the first row of the block.
  void locate(Value block);
  /// Goes over the keys of the range, and stores the result.
  void emitKeys(std::pair<Value, Value> range);
  /// The factor of a row's sum of values, of which `sum` is not zero.
  virtual Value getWeightFactor(size_t row, Value sum, Value maximum);

  /// The number of this block's split of the keys, and of the block whose keys it shares.
  Value split, whole;

private:
  /// Maxima and sums of the rows, and the result, before the first key.
  SmallVector<Value> getStart();
  /// This block's split of the keys of the range.
  std::pair<Value, Value> getOwnKeys(std::pair<Value, Value> range);
  /// Writes the maxima, sums and result of this block's split of the keys. The last block to do so
  /// merges those of all splits.
  void writeSplit(ValueRange running);
  SmallVector<Value> merge(ValueRange running, ValueRange other);
  SmallVector<Value> emitTile(ValueRange running);
  SmallVector<Value> emitUpdate(ValueRange running);
  Value emitScore(Value product, size_t i);
  void emitEnd(ValueRange running);
};

/// The scores and the result are fragments of 8 columns, as those of sums of mma.sync
/// (GpuMatrix.h). Four warps have 64 rows.
///
/// Two fragments of scores, narrowed, are the left operand of the next product, so shares stay in
/// registers.
class AttentionFragments : public AttentionTiles {
protected:
  AttentionFragments(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  Value getRowOffset(int64_t row) override;
  Value getKeyOffset(int64_t key) override;
  SmallVector<Value> getZeros() override;
  void emitResult(ValueRange factors, ValueRange result) override;
  /// Stores a result in the type of arithmetic.
  void emitWideResult(ValueRange factors, ValueRange result);
  /// Shared memory for 64 rows of the result, at the end.
  virtual Value getResultTile() = 0;

  /// The sums of two rows of each fragment, by row.
  SmallVector<Value> getScores(ArrayRef<Value> sums);
  /// The four words of the left operand for 16 keys of the tile.
  SmallVector<Value> getLeft(ValueRange shares, int64_t key);
  SmallVector<Value> scale(ValueRange result, ValueRange scales) override;
  Value warp() { return div(thread, 32); }
  Value lane() { return rem(thread, 32); }

  static constexpr int64_t groupRows = 64, depth = 16, gap = 8, bytes = 2;
  Type stored;
  /// The elements between rows of the result.
  const int64_t resultStride;
};

/// Products by FMA, for all types and all sizes of heads.
std::unique_ptr<AttentionTiles> makeAttentionFma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);
/// Products by mma.sync, for bf16 and f16.
std::unique_ptr<AttentionTiles> makeAttentionMma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);

/// Products by wgmma of tiles that tensor maps copy, as `AttentionTilePlan::usesWgmma` allows.
std::unique_ptr<AttentionTiles> makeAttentionWgmma(const AttentionLaunch &launch,
                                                   const AttentionTilePlan &plan);
/// The tensor maps of that kernel: of queries, keys and values.
SmallVector<mw_rt_tensor_map> getTensorMaps(const AttentionTilePlan &plan);

/// The kernel of a nn.attention_grad.
std::unique_ptr<AttentionBlock> makeAttentionGradient(const AttentionLaunch &launch,
                                                      const AttentionTilePlan &plan);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H

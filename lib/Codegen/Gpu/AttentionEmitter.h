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
// Masks, maxima and sums need only that four neighbouring lanes have the scores of a row, so they are
// the same for both ways to multiply (`AttentionFma`, `AttentionMma`).
//
// A tile whose scores are all hidden is left out: the block finds out by one barrier, before it
// reads keys. So masks of all kinds leave out blocks, also those that come from memory.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H

#include "meshwright/lib/Codegen/Gpu/AttentionBlock.h"

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
  /// Stores the result times the factor of each row.
  virtual void emitResult(ValueRange factors, ValueRange result) = 0;

private:
  void emitBlock(Value block) override;
  SmallVector<Value> emitTile(ValueRange state);
  SmallVector<Value> emitUpdate(ValueRange state);
  Value emitScore(Value product, size_t i);
  void emitEnd(ValueRange state);
};

/// Products by FMA, for all types and all sizes of heads.
std::unique_ptr<AttentionTiles> makeAttentionFma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);
/// Products by mma.sync, for bf16 and f16.
std::unique_ptr<AttentionTiles> makeAttentionMma(const AttentionLaunch &launch,
                                                 const AttentionTilePlan &plan);

/// The kernel of a nn.attention_grad.
std::unique_ptr<AttentionBlock> makeAttentionGradient(const AttentionLaunch &launch,
                                                      const AttentionTilePlan &plan);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_ATTENTIONEMITTER_H

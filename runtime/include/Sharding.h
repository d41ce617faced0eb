//===- Sharding.h - global arrays to local buffers and back -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_SHARDING_H
#define MESHWRIGHT_RUNTIME_INCLUDE_SHARDING_H

#include "meshwright-c/Runtime.h"
#include "meshwright/TokenOrder.h"
#include "meshwright/runtime/include/Boxes.h"

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// A factor of a dimension: `size` elements in an order for `orderRanks` ranks, padded
/// at the tail to `padded`, in equal chunks over the axes.
struct ShardedFactor {
  int64_t size, padded;
  mw_rt_axes axes;
  TokenOrder order = TokenOrder::Contiguous;
  int64_t orderRanks = 1;
};

/// The layout of a value on the ranks: each dimension is a product of factors, major to minor.
struct ShardedLayout {
  std::vector<std::vector<ShardedFactor>> dims;

  std::vector<int64_t> getGlobalShape() const;
  std::vector<int64_t> getLocalShape() const;
  /// Returns true if the buffer of every rank equals the global array.
  bool isReplicated() const;
};

/// Fills a rank's local buffer from the global array. Padding is filled with zeros. The array may
/// be a box of a larger array: `stored` is the shape of the larger array, and the box begins at
/// index `offsets`. Both are empty if it is the array itself.
void shard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *global,
           const std::vector<int64_t> &stored, const std::vector<int64_t> &offsets, void *local);

/// The same from the pieces of an array, which together cover it.
void shard(const ShardedLayout &layout, int64_t rank, int64_t elementSize,
           const std::vector<TensorPiece> &pieces, const std::vector<int64_t> &offsets,
           void *local);

/// Writes a rank's local buffer to its part of the global array.
void unshard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *local,
             void *global);

/// The boxes that `shard` copies from a whole global array, and which cover the local buffer except
/// padding. Exchanged, they are those that `unshard` copies.
std::vector<StridedBox> getShardBoxes(const ShardedLayout &layout, int64_t rank,
                                      int64_t elementSize);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SHARDING_H

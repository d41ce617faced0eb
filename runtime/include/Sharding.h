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

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// A factor of a dimension: `size` elements in an order for `orderRanks` ranks, padded
/// at the tail to `padded`, in equal chunks over the axes.
struct ShardedFactor {
  int64_t size, padded;
  mw_rt_axes axes;
  TokenOrder order = TokenOrder::Natural;
  int64_t orderRanks = 1;
};

/// How a value lies on the ranks: each dimension is a product of factors, major
/// to minor.
struct ShardedLayout {
  std::vector<std::vector<ShardedFactor>> dims;

  std::vector<int64_t> getGlobalShape() const;
  std::vector<int64_t> getLocalShape() const;
  /// Whether every rank's buffer is the global array.
  bool isReplicated() const;
};

/// Fills a rank's local buffer from the global array, padding with zeros. The
/// array may be a box of a larger one: `stored` is the larger one's shape and
/// `offsets` where the box begins (both empty: it is the array itself).
void shard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *global,
           const std::vector<int64_t> &stored, const std::vector<int64_t> &offsets, void *local);

/// Writes a rank's part of the global array.
void unshard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *local,
             void *global);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_SHARDING_H

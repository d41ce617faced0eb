//===- AxisParts.h - several axes as one ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H
#define MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright {

/// The part of some axes that has `size` ranks after the first `pre` ones, where the axes
/// (major to minor) count as one axis. None where this would cut an axis unevenly.
std::optional<dist::AxisList> getAxisPart(mlir::ArrayRef<dist::Axis> axes, int64_t pre,
                                          int64_t size);

/// A split of attention heads over ranks. Key/value heads have `keyShards` shards, and the query
/// heads of a group are sharded over the ranks of a shard.
struct HeadSplit {
  int64_t keyShards, keyHeads, heads;
};

/// The split that sends the fewest bytes, including keys and values around a ring of `ring`
/// ranks. Ties go to the fewest computed heads, then to the fewest padded key/value heads.
HeadSplit splitHeads(int64_t keyHeads, int64_t group, int64_t ranks, int64_t ring);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H

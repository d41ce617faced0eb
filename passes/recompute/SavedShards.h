//===- SavedShards.h - how saved values are cut -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Chooses the shards in which ranks that hold a value alike keep it for the backward pass.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_SAVEDSHARDS_H
#define MESHWRIGHT_PASSES_RECOMPUTE_SAVEDSHARDS_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"

namespace meshwright {

/// A dimension, and axes along which the ranks hold a value alike.
struct SavedShards {
  dist::AxisList axes;
  int64_t dim;
};

/// The outermost dimension that these ranks divide. None if there is no such dimension, or one rank
/// alone.
std::optional<SavedShards> getSavedShards(mlir::Value value, const PlacementAnalysis &placement);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_RECOMPUTE_SAVEDSHARDS_H

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

/// Of the axes (major to minor), seen as one axis of their product's size, the
/// part of `size` behind `pre`; none where an axis does not split so.
std::optional<dist::AxisList> getPart(mlir::ArrayRef<dist::Axis> axes, int64_t pre, int64_t size);

/// How the heads of attention go over ranks: key/value heads over so many parts, the
/// queries of a group over the ranks of a part, and what a rank then has of both.
struct HeadSplit {
  int64_t parts, keyHeads, heads;
};

/// The split that sends fewest bytes, keys and values around a ring of `ring` ranks
/// included, then computes fewest heads, then pads fewest of keys and values.
HeadSplit splitHeads(int64_t keyHeads, int64_t group, int64_t ranks, int64_t ring);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H

//===- RingSteps.h - which keys a mask lets meet which queries --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over keys that are sharded along a ring goes in steps: in step t the
// rank with coordinate i has chunk i - t of the keys. A mask may leave steps empty
// on all ranks. The partitioner writes the others, the verifier expects them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_ANALYSIS_RINGSTEPS_H
#define MESHWRIGHT_LIB_ANALYSIS_RINGSTEPS_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright {

/// Which positions a query sees, by their difference.
struct MaskShape {
  bool causal = false;
  std::optional<int64_t> windowLeft, windowRight;

  static MaskShape of(nn::AttentionOp op);
  /// Whether it compares positions at all.
  bool isPositional() const { return causal || windowLeft || windowRight; }
};

/// The steps along the axes of `keys` in which some rank has a query that may see a
/// key: bit t for step t. `queries` is null where their positions are not known, else
/// sharded over the same axes or over none. A superset where an order interleaves
/// positions; never less than the mask needs.
llvm::SmallBitVector getNeededSteps(const MaskShape &mask, const dist::LayoutFactor *queries,
                                    const dist::LayoutFactor &keys);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_ANALYSIS_RINGSTEPS_H

//===- RingSteps.h - which keys a mask lets meet which queries --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over keys that are sharded along a ring goes in steps: in step t the
// rank with coordinate i has chunk i - t of the keys. A mask may leave a step empty,
// on all ranks or on some. The partitioner writes the others, the verifier expects
// them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H
#define MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H

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

/// Sets of ranks, by their coordinate over the axes of the keys, for each step.
using RanksOfSteps = mlir::SmallVector<llvm::SmallBitVector>;

/// The ranks that have a query that may see a key of their chunk. `queries` is null
/// where their positions are not known, else sharded over the same axes or over none.
/// A superset where an order interleaves positions; never less than the mask needs.
RanksOfSteps getNeedingRanks(const MaskShape &mask, const dist::LayoutFactor *queries,
                             const dist::LayoutFactor &keys);

/// The steps that some rank needs: bit t for step t. The first where none does, since a
/// sequence without any pair still has a result, of zeros.
llvm::SmallBitVector getNeededSteps(llvm::ArrayRef<llvm::SmallBitVector> needing);

/// The ranks that must have their chunk where chunks go from each needed step to the
/// next: those that need it, and those that pass it on.
RanksOfSteps getHoldingRanks(llvm::ArrayRef<llvm::SmallBitVector> needing);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H

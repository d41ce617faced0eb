//===- RingSteps.h - which keys a mask lets meet which queries --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention over keys that are sharded along a ring runs in steps. In step t the rank with
// coordinate i has chunk i - t of the keys. A mask may leave a step empty, on all ranks or
// on some. The partitioner writes the steps that are not empty, and the verifier expects
// the same steps.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H
#define MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright {

/// The positions that a query sees, as bounds on their difference from its own.
struct MaskShape {
  bool causal = false;
  std::optional<int64_t> windowLeft, windowRight;

  static MaskShape of(nn::ScoresOpInterface op);
  /// Returns true if the mask compares positions.
  bool isPositional() const { return causal || windowLeft || windowRight; }
};

/// Sets of ranks, by their coordinate over the axes of the keys, for each step.
using RanksOfSteps = mlir::SmallVector<llvm::SmallBitVector>;

/// For each step, the ranks that have a query that may see a key of their chunk.
/// - `queries` is null if the positions of the queries are not known. Otherwise they are
///   sharded over the axes of the keys, or not sharded.
/// - The sets contain every rank that the mask needs. They may contain more ranks if an
///   order interleaves positions.
RanksOfSteps getNeedingRanks(const MaskShape &mask, const dist::LayoutFactor *queries,
                             const dist::LayoutFactor &keys);

/// The steps that at least one rank needs; bit t stands for step t. Step 0 if no rank needs
/// any, since a sequence without a visible pair has a result of zeros.
llvm::SmallBitVector getNeededSteps(llvm::ArrayRef<llvm::SmallBitVector> needing);

/// For each step, the ranks that must hold their chunk: the ranks that need it, and the
/// ranks that pass it on to the next needed step.
RanksOfSteps getHoldingRanks(llvm::ArrayRef<llvm::SmallBitVector> needing);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_RINGSTEPS_H

//===- RingSteps.cpp - which keys a mask lets meet which queries ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/RingSteps.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

MaskShape MaskShape::of(nn::ScoresOpInterface op) {
  MaskShape mask;
  mask.causal = op.getCausal();
  if (auto window = op.getWindowLeft())
    mask.windowLeft = *window;
  if (auto window = op.getWindowRight())
    mask.windowRight = *window;
  return mask;
}

namespace {
/// The first and the last of a run of positions.
struct Interval {
  int64_t first, last;
};
} // namespace

/// Intervals that contain the positions of one chunk: up to two in zigzag order, one in
/// other orders.
static SmallVector<Interval, 2> getIntervals(const LayoutFactor &factor, int64_t chunks,
                                             int64_t chunk) {
  int64_t size = factor.padded / chunks, begin = chunk * size;
  int64_t end = std::min(begin + size, factor.size);
  SmallVector<Interval, 2> intervals;
  auto at = [&](int64_t slot) {
    return getTokenInSlot(factor.order, factor.orderRanks, factor.size, factor.padded, slot);
  };
  for (int64_t slot = begin; slot < end; ++slot) {
    int64_t position = at(slot);
    bool joins = !intervals.empty() &&
                 (factor.order == TokenOrder::Striped || position == intervals.back().last + 1);
    if (!joins)
      intervals.push_back({position, position});
    intervals.back().first = std::min(intervals.back().first, position);
    intervals.back().last = std::max(intervals.back().last, position);
  }
  return intervals;
}

static bool mayMeet(const MaskShape &mask, const Interval &queries, const Interval &keys) {
  // A query sees a key if their distance is within the window, and causal queries see no
  // later key.
  if (mask.causal && queries.last < keys.first)
    return false;
  if (mask.windowLeft && keys.last < queries.first - *mask.windowLeft)
    return false;
  return !(mask.windowRight && keys.first > queries.last + *mask.windowRight);
}

RanksOfSteps meshwright::getNeedingRanks(const MaskShape &mask, const LayoutFactor *queries,
                                         const LayoutFactor &keys) {
  int64_t chunks = getNumShards(keys.axes);
  RanksOfSteps needing(chunks, llvm::SmallBitVector(chunks));
  SmallVector<SmallVector<Interval, 2>> keyIntervals, queryIntervals;
  for (int64_t i = 0; i < chunks; ++i)
    keyIntervals.push_back(getIntervals(keys, chunks, i));
  bool sharded = queries && !queries->axes.empty();
  if (queries)
    for (int64_t i = 0, e = sharded ? chunks : 1; i < e; ++i)
      queryIntervals.push_back(getIntervals(*queries, sharded ? chunks : 1, i));
  bool positional = mask.isPositional() && queries;
  for (int64_t rank = 0; rank < chunks; ++rank) {
    for (int64_t step = 0; step < chunks; ++step) {
      ArrayRef<Interval> there = keyIntervals[(rank - step + chunks) % chunks];
      bool needed = !positional && !there.empty();
      if (positional)
        for (const Interval &own :
             queryIntervals[sharded ? (rank - queries->shift + chunks) % chunks : 0])
          for (const Interval &other : there)
            needed |= mayMeet(mask, own, other);
      if (needed)
        needing[step].set(rank);
    }
  }
  return needing;
}

llvm::SmallBitVector meshwright::getNeededSteps(ArrayRef<llvm::SmallBitVector> needing) {
  llvm::SmallBitVector needed(needing.size());
  for (auto [step, ranks] : llvm::enumerate(needing))
    needed[step] = ranks.any();
  if (needed.none())
    needed.set(0);
  return needed;
}

RanksOfSteps meshwright::getHoldingRanks(ArrayRef<llvm::SmallBitVector> needing) {
  unsigned size = needing.size();
  RanksOfSteps holding(needing);
  llvm::SmallBitVector needed = getNeededSteps(needing);
  for (int next = needed.find_last(); next > 0;) {
    int step = needed.find_prev(next);
    if (step < 0)
      break;
    for (unsigned rank : holding[next].set_bits())
      holding[step].set((rank + size - (next - step)) % size);
    next = step;
  }
  return holding;
}

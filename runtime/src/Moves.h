//===- Moves.h - which elements a collective sends where --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The boxes of every kind of collective, with the rules of padding: shared by all
// backends, which differ in how a box travels, never in where it goes.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_MOVES_H
#define MESHWRIGHT_RUNTIME_SRC_MOVES_H

#include "meshwright-c/Runtime.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// A box of elements that a rank takes out of the input of a member of its group.
struct Move {
  /// The member's linear coordinate over the group; possibly the rank's own.
  int64_t from = 0;
  /// Where it lies in that input and in the rank's output.
  std::vector<int64_t> source, destination;
  std::vector<int64_t> extents;
};

/// What one tensor of a collective moves to a rank.
struct Arrivals {
  std::vector<int64_t> inShape, outShape;
  int64_t elementSize = 0;
  /// Some of the output is zeros: no box covers it.
  bool clears = false;
  /// No box is empty. By ascending `from` where each member sends one.
  std::vector<Move> moves;
};

/// The moves of all-gather, all-to-all, permute and redistribute; of a
/// reduce-scatter, the boxes that are combined into the output, one for each
/// member of the group and all of one shape.
Arrivals arrivalsOf(const mw_rt_collective &what, int64_t tensor, int64_t rank);

/// Returns false for the kinds that only cut a rank's own value: slices and partial sums.
inline bool communicates(const mw_rt_collective &what) {
  return what.kind != MW_RT_SLICE && what.kind != MW_RT_PARTIAL;
}

/// For each member of a permute's group the one whose value it receives, or -1.
const int64_t *sourcesOf(const mw_rt_collective &what);
/// Whether a member of a permute's group sends to another or receives from one: the
/// others have nobody to wait for.
bool joinsPermute(const mw_rt_collective &what, int64_t member);

/// The elements `first` to `second` of `count` that member `self` of `size`
/// combines in an all-reduce.
inline std::pair<int64_t, int64_t> shareOf(int64_t count, int64_t self, int64_t size) {
  return {count * self / size, count * (self + 1) / size};
}

/// Elements of a tensor before or after a collective.
int64_t countBefore(const mw_rt_moved_tensor &moved);
int64_t countAfter(const mw_rt_moved_tensor &moved);

/// What a rank sends, by the algorithms that the cost model assumes: as
/// getBytesSent and getSteps in lib/CostModel.
struct Traffic {
  int64_t bytes = 0, steps = 0;
};
Traffic trafficOf(const mw_rt_collective &what, int64_t rank);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_MOVES_H

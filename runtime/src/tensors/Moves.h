//===- Moves.h - the boxes that a collective moves --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A collective moves boxes of elements between the ranks of a group. This file computes the boxes
// of each kind, padding included. All backends and devices share it: they differ in how they
// transfer a box, never in its source and destination.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_TENSORS_MOVES_H
#define MESHWRIGHT_RUNTIME_SRC_TENSORS_MOVES_H

#include "meshwright-c/Runtime.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace meshwright::rt {

/// The kinds of collectives.
enum class CollectiveKind : int64_t {
  AllReduce = MW_RT_ALL_REDUCE,
  ReduceScatter = MW_RT_REDUCE_SCATTER,
  AllGather = MW_RT_ALL_GATHER,
  AllToAll = MW_RT_ALL_TO_ALL,
  Permute = MW_RT_PERMUTE,
  Redistribute = MW_RT_REDISTRIBUTE,
  Slice = MW_RT_SLICE,
  Partial = MW_RT_PARTIAL,
};
inline CollectiveKind kindOf(const mw_rt_collective &what) { return CollectiveKind(what.kind); }

/// How the ranks of a collective exchange values. Backends tell collectives apart by it alone, so
/// a new kind needs no line in them.
enum class Exchange {
  /// The inputs of all members, combined, are the output of each.
  Combine,
  /// A box of each input, combined, is the output.
  CombineBoxes,
  /// The output consists of boxes of inputs.
  CopyBoxes,
  /// The output is made of the rank's own input.
  None,
};
/// Throws an exception for a kind that this runtime does not know.
Exchange exchangeOf(const mw_rt_collective &what);

/// A box of elements that a rank copies from the input of a member of its group.
struct Move {
  /// The member's number in the group; possibly the rank's own.
  int64_t from = 0;
  /// The first index of the box in that input, and in the rank's output.
  std::vector<int64_t> source, destination;
  std::vector<int64_t> extents;
};

/// The boxes that a rank receives for one tensor of a collective.
struct Arrivals {
  std::vector<int64_t> inShape, outShape;
  int64_t elementSize = 0;
  /// True if some elements of the output are in no box. They become zeros.
  bool clears = false;
  /// No box is empty. An all-gather, reduce-scatter or all-to-all has at most one box from each
  /// member, in the order of `from`.
  std::vector<Move> moves;
};

/// Computes the boxes that a rank of the mesh copies or combines. Boxes that it combines have
/// one shape, and one comes from each member. A collective that combines whole inputs has none (see
/// `shareOf`), and one without an exchange has none.
Arrivals arrivalsOf(const mw_rt_collective &what, int64_t tensor, int64_t rank);

/// Returns false for the kinds that read only the rank's own value: a slice, and a partial sum
/// (the value on the group's first rank, zeros on the others).
inline bool communicates(const mw_rt_collective &what) {
  return exchangeOf(what) != Exchange::None;
}

/// For each member of a permute's group, the member whose value it receives, or -1 for zeros.
const int64_t *sourcesOf(const mw_rt_collective &what);
/// Returns true if a member of a permute's group sends to another member or receives from one.
/// Only these members communicate.
bool joinsPermute(const mw_rt_collective &what, int64_t member);

/// The part of `count` elements that member `self` of `size` combines in an all-reduce: its begin
/// and its end.
inline std::pair<int64_t, int64_t> shareOf(int64_t count, int64_t self, int64_t size) {
  return {count * self / size, count * (self + 1) / size};
}

/// The number of a tensor's elements on a rank, before and after the collective.
int64_t countBefore(const mw_rt_moved_tensor &moved);
int64_t countAfter(const mw_rt_moved_tensor &moved);

/// The bytes that a rank sends, and the steps that it takes, in the algorithms that the cost model
/// assumes. The formulas are those of getBytesSent and getSteps in lib/CostModel.
struct Traffic {
  int64_t bytes = 0, steps = 0;
};
Traffic trafficOf(const mw_rt_collective &what, int64_t rank);

/// The first rank of the group of a collective; -1 for one that does not communicate.
int64_t firstOfGroup(const mw_rt_collective &what, int64_t rank);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_TENSORS_MOVES_H

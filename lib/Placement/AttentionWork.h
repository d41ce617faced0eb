//===- AttentionWork.h - how much attention each rank computes --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Counts the pairs of a query and a key that each rank computes. A mask leaves pairs out,
// and the order of the sequence decides which rank holds the others. Counts are exact, and
// padding does not count.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H
#define MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/RingSteps.h"

namespace meshwright {

/// Counts pairs of a query and a key that the query sees, for each pair of chunks. Entry
/// [i * keyChunks + j] counts the pairs of query chunk i and key chunk j. The chunks of a
/// factor are equal parts of its padded size, in its order.
std::vector<int64_t> countVisiblePairs(const MaskShape &mask, const dist::LayoutFactor &queries,
                                       int64_t queryChunks, const dist::LayoutFactor &keys,
                                       int64_t keyChunks);

/// The work of attention on each rank: pairs of a query and a key, times heads, times batch.
struct AttentionWork {
  std::vector<int64_t> perRank;
  /// The order of the queries.
  TokenOrder order = TokenOrder::Contiguous;

  int64_t getLargest() const;
  double getMean() const;
  /// 1 if all ranks have the same work.
  double getLargestOverMean() const;
};

/// The work of one attention op of an SPMD program. The op may be one step of a ring.
AttentionWork getAttentionWork(nn::ScoresOpInterface op, const PlacementAnalysis &placement);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H

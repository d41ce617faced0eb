//===- AttentionWork.h - how much attention each rank computes --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A mask leaves some pairs of a query and a key out, and the order of the sequence
// says on which ranks the others lie. Counted exactly, padding left out.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H
#define MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/RingSteps.h"

namespace meshwright {

/// Pairs of a query and a key that it sees, by the chunk that either lies in: those of
/// query chunk i and key chunk j at [i * keyChunks + j]. A factor's chunks are equal
/// parts of its padded size, in its order.
std::vector<int64_t> countVisiblePairs(const MaskShape &mask, const dist::LayoutFactor &queries,
                                       int64_t queryChunks, const dist::LayoutFactor &keys,
                                       int64_t keyChunks);

/// What attention makes the ranks compute, in pairs times heads and batch.
struct AttentionWork {
  std::vector<int64_t> perRank;
  /// In which the queries lie.
  TokenOrder order = TokenOrder::Natural;

  int64_t getLargest() const;
  double getMean() const;
  /// 1 where all have the same to do.
  double getLargestOverMean() const;
};

/// The work of one attention op of an SPMD program, which may be a step of several.
AttentionWork getAttentionWork(nn::AttentionOp op, const PlacementAnalysis &placement);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_ATTENTIONWORK_H

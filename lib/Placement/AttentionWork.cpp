//===- AttentionWork.cpp - how much attention each rank computes ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/AttentionWork.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The chunk of each position.
static std::vector<int64_t> getChunks(const LayoutFactor &factor, int64_t chunks) {
  std::vector<int64_t> chunkOf(factor.size);
  int64_t size = factor.padded / chunks;
  for (int64_t slot = 0; slot < factor.size; ++slot)
    chunkOf[getTokenInSlot(factor.order, factor.orderRanks, factor.size, factor.padded, slot)] =
        slot / size;
  return chunkOf;
}

std::vector<int64_t> meshwright::countVisiblePairs(const MaskShape &mask,
                                                   const LayoutFactor &queries, int64_t queryChunks,
                                                   const LayoutFactor &keys, int64_t keyChunks) {
  std::vector<int64_t> pairs(queryChunks * keyChunks);
  std::vector<int64_t> queryChunk = getChunks(queries, queryChunks);
  std::vector<int64_t> keyChunk = getChunks(keys, keyChunks);
  // The number of keys of the chunk before each position.
  std::vector<int64_t> before(keys.size + 1);
  for (int64_t j = 0; j < keyChunks; ++j) {
    for (int64_t key = 0; key < keys.size; ++key)
      before[key + 1] = before[key] + (keyChunk[key] == j);
    for (int64_t query = 0; query < queries.size; ++query) {
      int64_t first = mask.windowLeft ? std::max<int64_t>(0, query - *mask.windowLeft) : 0;
      int64_t end = keys.size;
      if (mask.causal)
        end = std::min(end, query + 1);
      if (mask.windowRight)
        end = std::min(end, query + *mask.windowRight + 1);
      first = std::min(first, keys.size);
      if (first < end)
        pairs[queryChunk[query] * keyChunks + j] += before[end] - before[first];
    }
  }
  return pairs;
}

int64_t AttentionWork::getLargest() const {
  return perRank.empty() ? 0 : *llvm::max_element(perRank);
}

double AttentionWork::getMean() const {
  return perRank.empty() ? 0
                         : std::accumulate(perRank.begin(), perRank.end(), 0.0) / perRank.size();
}

double AttentionWork::getLargestOverMean() const {
  double mean = getMean();
  return mean > 0 ? double(getLargest()) / mean : 1;
}

/// A sequence as one factor. Masks that compare positions need a sequence of one factor, so
/// a product is described by the axes of its major factor.
static LayoutFactor getSequence(const DimLayout &dim) {
  if (dim.factors.size() == 1)
    return dim.factors.front();
  LayoutFactor sequence;
  sequence.axes = dim.getAxes();
  sequence.size = dim.getGlobalSize();
  sequence.padded = dim.getLocalSize() * getNumShards(sequence.axes);
  return sequence;
}

AttentionWork meshwright::getAttentionWork(nn::ScoresOpInterface op,
                                           const PlacementAnalysis &placement) {
  MeshAttr mesh = placement.getMesh();
  const Layout &query = placement.getLayout(op.getQuery());
  LayoutFactor queries = getSequence(query.dims[2]);
  LayoutFactor keys = getSequence(placement.getLayout(op.getKey()).dims[2]);
  int64_t queryChunks = getNumShards(queries.axes), keyChunks = getNumShards(keys.axes);
  std::vector<int64_t> pairs =
      countVisiblePairs(MaskShape::of(op), queries, queryChunks, keys, keyChunks);
  ArrayRef<int64_t> shape = cast<RankedTensorType>(op.getQuery().getType()).getShape();
  AttentionWork work;
  work.order = queries.order;
  for (int64_t rank = 0; rank < mesh.getNumRanks(); ++rank) {
    int64_t i = getCoordinate(rank, queries.axes, mesh);
    int64_t j = getCoordinate(rank, keys.axes, mesh) - keys.shift;
    j = (j % keyChunks + keyChunks) % keyChunks;
    work.perRank.push_back(pairs[i * keyChunks + j] * shape[0] * shape[1]);
  }
  return work;
}

//===- Reduce.cpp - combining partial values ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Reduce.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

/// Elements that stay in cache while the sources are added to them.
static constexpr int64_t blockSize = 2048;

template <typename T> static T larger(T a, T b) { return a != a || a > b ? a : b; }

template <typename T> static void combine(int64_t kind, T *into, const T *from, int64_t count) {
  if (kind == MW_RT_SUM)
    for (int64_t i = 0; i < count; ++i)
      into[i] += from[i];
  else
    for (int64_t i = 0; i < count; ++i)
      into[i] = larger(into[i], from[i]);
}

template <typename T>
static void reduceNative(int64_t kind, const std::vector<const void *> &sources, void *result,
                         int64_t count) {
  for (int64_t begin = 0; begin < count; begin += blockSize) {
    int64_t block = std::min(blockSize, count - begin);
    T sum[blockSize];
    std::memcpy(sum, static_cast<const T *>(sources[0]) + begin, block * sizeof(T));
    for (size_t i = 1; i < sources.size(); ++i)
      combine(kind, sum, static_cast<const T *>(sources[i]) + begin, block);
    std::memcpy(static_cast<T *>(result) + begin, sum, block * sizeof(T));
  }
}

void reduce(DType type, int64_t kind, const std::vector<const void *> &sources, void *result,
            int64_t count) {
  switch (type) {
  case DType::F32:
    return reduceNative<float>(kind, sources, result, count);
  case DType::F64:
    return reduceNative<double>(kind, sources, result, count);
  case DType::I64:
    return reduceNative<int64_t>(kind, sources, result, count);
  case DType::I32:
    return reduceNative<int32_t>(kind, sources, result, count);
  case DType::I1:
    // The sum of truth values is "any", as is their largest.
    return reduceNative<uint8_t>(MW_RT_MAX, sources, result, count);
  case DType::BF16:
  case DType::F16:
    break;
  }
  for (int64_t begin = 0; begin < count; begin += blockSize) {
    int64_t block = std::min(blockSize, count - begin);
    float sum[blockSize], term[blockSize];
    widen(type, static_cast<const uint16_t *>(sources[0]) + begin, sum, block);
    for (size_t i = 1; i < sources.size(); ++i) {
      widen(type, static_cast<const uint16_t *>(sources[i]) + begin, term, block);
      combine(kind, sum, term, block);
    }
    narrow(type, sum, static_cast<uint16_t *>(result) + begin, block);
  }
}

void reduceChunk(const mw_rt_collective &what, int64_t tensor, const Arrivals &arrivals,
                 const std::vector<ChunkSource> &sources, void *result) {
  int64_t dim = what.tensors[tensor].dim, size = arrivals.elementSize;
  if (arrivals.clears)
    std::memset(result, 0, countOf(arrivals.outShape) * size);
  if (arrivals.moves.empty())
    return;
  // All boxes are the same rows of `dim`: runs of elements, one for each index of
  // the dimensions before it.
  const Move &box = arrivals.moves.front();
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < int64_t(box.extents.size()); ++d)
    (d < dim ? outer : inner) *= d == dim ? 1 : box.extents[d];
  int64_t count = box.extents[dim] * inner;
  std::vector<const void *> runs(sources.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < sources.size(); ++i) {
      int64_t first =
          sources[i].isBox ? o * count : (o * arrivals.inShape[dim] + box.source[dim]) * inner;
      runs[i] = static_cast<const char *>(sources[i].data) + first * size;
    }
    reduce(DType(what.tensors[tensor].dtype), what.reduction, runs,
           static_cast<char *>(result) + o * arrivals.outShape[dim] * inner * size, count);
  }
}

} // namespace meshwright::rt

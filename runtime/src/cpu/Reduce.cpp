//===- Reduce.cpp - combining partial values ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Reduce.h"

#include "ReduceKernel.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

static ReduceKernel chooseKernel() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    return reduceAvx512;
  if (__builtin_cpu_supports("avx2"))
    return reduceAvx2;
#endif
  return reduceBaseline;
}

/// Adds f16 in f32, block by block, so that the sums stay in cache.
static void reduceHalf(int64_t kind, const std::vector<const void *> &sources,
                       const std::vector<void *> &results, int64_t count) {
  constexpr int64_t blockSize = 2048;
  static const ReduceKernel kernel = chooseKernel();
  for (int64_t begin = 0; begin < count; begin += blockSize) {
    int64_t block = std::min(blockSize, count - begin);
    float sum[blockSize], term[blockSize];
    const void *both[] = {sum, term};
    void *into[] = {sum};
    auto at = [&](const void *data) { return static_cast<const uint16_t *>(data) + begin; };
    widen(DType::F16, at(sources[0]), sum, block);
    for (size_t i = 1; i < sources.size(); ++i) {
      widen(DType::F16, at(sources[i]), term, block);
      kernel(MW_F32, kind, both, 2, into, 1, block);
    }
    narrow(DType::F16, sum, static_cast<uint16_t *>(results[0]) + begin, block);
    for (size_t i = 1; i < results.size(); ++i)
      std::copy_n(at(results[0]), block, static_cast<uint16_t *>(results[i]) + begin);
  }
}

void reduce(DType type, int64_t kind, const std::vector<const void *> &sources,
            const std::vector<void *> &results, int64_t count) {
  static const ReduceKernel kernel = chooseKernel();
  if (type == DType::F16)
    return reduceHalf(kind, sources, results, count);
  kernel(int64_t(type), kind, sources.data(), sources.size(), results.data(), results.size(),
         count);
}

void reduceChunk(const mw_rt_collective &what, int64_t tensor, const Arrivals &arrivals,
                 const std::vector<ChunkSource> &sources, void *result) {
  int64_t dim = what.tensors[tensor].dim, size = arrivals.elementSize;
  if (arrivals.clears)
    std::memset(result, 0, countOf(arrivals.outShape) * size);
  if (arrivals.moves.empty())
    return;
  // All boxes are the same rows of `dim`. Each box is a run of contiguous elements for each index
  // of the dimensions before it.
  const Move &box = arrivals.moves.front();
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < int64_t(box.extents.size()); ++d)
    (d < dim ? outer : inner) *= d == dim ? 1 : box.extents[d];
  int64_t count = box.extents[dim] * inner;
  std::vector<const void *> runs(sources.size());
  std::vector<void *> to(1);
  for (int64_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < sources.size(); ++i) {
      int64_t first =
          sources[i].isBox ? o * count : (o * arrivals.inShape[dim] + box.source[dim]) * inner;
      runs[i] = static_cast<const char *>(sources[i].data) + first * size;
    }
    to[0] = static_cast<char *>(result) + o * arrivals.outShape[dim] * inner * size;
    reduce(DType(what.tensors[tensor].dtype), what.reduction, runs, to, count);
  }
}

} // namespace meshwright::rt

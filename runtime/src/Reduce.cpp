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

} // namespace meshwright::rt

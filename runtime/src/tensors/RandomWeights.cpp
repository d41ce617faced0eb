//===- RandomWeights.cpp - weights for programs that have none ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/RandomWeights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>

namespace meshwright::rt {

/// Fewer elements are drawn faster by one thread.
static constexpr int64_t kElementsForThreads = 1 << 18;
/// Floats are drawn and narrowed in pieces of this many.
static constexpr int64_t kPiece = 256;

/// One step of SplitMix64: neighbouring keys give independent numbers.
static uint64_t mix(uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

/// FNV-1a: unlike std::hash, the same in every build.
static uint64_t hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : name)
    hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

namespace {
/// How the elements of a tensor are drawn.
struct Draw {
  DType type;
  uint64_t key, bound;
  double width, middle;

  Draw(const WeightTensor &tensor, uint64_t seed)
      : type(tensor.type), key(mix(seed ^ mix(hash(tensor.name)))),
        bound(tensor.indexBound > 0 ? tensor.indexBound : 2) {
    bool isMatrix = tensor.shape.size() > 1;
    width =
        isMatrix ? 2 * std::sqrt(3.0 / double(std::max<int64_t>(tensor.shape.back(), 1))) : 1.0;
    middle = isMatrix ? 0.0 : 1.0;
  }
  uint64_t getBits(int64_t index) const { return mix(key + uint64_t(index)); }
  float getFloat(int64_t index) const {
    return float(middle + width * (double(getBits(index) >> 40) / 0x1p24 - 0.5));
  }
};
} // namespace

template <typename T, typename Get>
static void store(char *to, int64_t begin, int64_t end, Get get) {
  for (int64_t i = begin; i < end; ++i) {
    T value = T(get(i));
    std::memcpy(to + i * int64_t(sizeof(T)), &value, sizeof(T));
  }
}

/// Draws the elements from `begin` to before `end`.
static void drawRange(const Draw &draw, char *to, int64_t begin, int64_t end) {
  auto getFloat = [&](int64_t i) { return draw.getFloat(i); };
  auto getIndex = [&](int64_t i) { return draw.getBits(i) % draw.bound; };
  switch (draw.type) {
  case DType::F64:
    return store<double>(to, begin, end, getFloat);
  case DType::F32:
    return store<float>(to, begin, end, getFloat);
  case DType::BF16:
  case DType::F16: {
    float piece[kPiece];
    for (int64_t i = begin; i < end; i += kPiece) {
      int64_t count = std::min(kPiece, end - i);
      for (int64_t j = 0; j < count; ++j)
        piece[j] = draw.getFloat(i + j);
      narrow(draw.type, piece, to + i * sizeOf(draw.type), count);
    }
    return;
  }
  case DType::I64:
    return store<int64_t>(to, begin, end, getIndex);
  case DType::I32:
    return store<int32_t>(to, begin, end, getIndex);
  case DType::I1:
    return store<char>(to, begin, end, [&](int64_t i) { return draw.getBits(i) % 4 != 0; });
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    return store<char>(to, begin, end, [&](int64_t i) { return toCode(draw.getBits(i)); });
  }
}

Memory drawWeight(const WeightTensor &tensor, uint64_t seed) {
  int64_t count = countOf(tensor.shape);
  Memory data = allocate(count * sizeOf(tensor.type));
  if (!data)
    return nullptr;
  Draw draw(tensor, seed);
  int64_t numThreads = std::clamp<int64_t>(count / kElementsForThreads, 1,
                                           std::max(1u, std::thread::hardware_concurrency()));
  auto drawPart = [&](int64_t part) {
    drawRange(draw, data.get(), count / numThreads * part,
              part + 1 == numThreads ? count : count / numThreads * (part + 1));
  };
  std::vector<std::thread> helpers;
  int64_t part = 1;
  try {
    for (; part < numThreads; ++part)
      helpers.emplace_back(drawPart, part);
  } catch (const std::system_error &) {
    // This thread draws the other parts.
  }
  drawPart(0);
  for (; part < numThreads; ++part)
    drawPart(part);
  for (std::thread &helper : helpers)
    helper.join();
  return data;
}

} // namespace meshwright::rt

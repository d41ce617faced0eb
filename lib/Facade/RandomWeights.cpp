//===- RandomWeights.cpp - weights for programs that have none ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Facade/RandomWeights.h"

#include "meshwright/runtime/include/SafeTensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace meshwright;

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

template <typename T>
static void store(char *to, int64_t index, T value) {
  std::memcpy(to + index * int64_t(sizeof(T)), &value, sizeof(T));
}

rt::Memory meshwright::drawWeight(std::string_view name, rt::DType type,
                                  const std::vector<int64_t> &shape, int64_t indexBound,
                                  uint64_t seed) {
  int64_t count = rt::countOf(shape), size = rt::sizeOf(type);
  rt::Memory data = rt::allocate(count * size);
  if (!data)
    return nullptr;
  bool isMatrix = shape.size() > 1;
  double width = isMatrix ? 2 * std::sqrt(3.0 / double(std::max<int64_t>(shape.back(), 1))) : 1.0;
  double middle = isMatrix ? 0.0 : 1.0;
  uint64_t bound = indexBound > 0 ? indexBound : 2, key = mix(seed ^ mix(hash(name)));
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = mix(key + uint64_t(i));
    float value = float(middle + width * (double(bits >> 40) / 0x1p24 - 0.5));
    switch (type) {
    case rt::DType::F64:
      store(data.get(), i, double(value));
      break;
    case rt::DType::F32:
      store(data.get(), i, value);
      break;
    case rt::DType::BF16:
    case rt::DType::F16:
      rt::narrow(type, &value, data.get() + i * size, 1);
      break;
    case rt::DType::I64:
      store(data.get(), i, int64_t(bits % bound));
      break;
    case rt::DType::I32:
      store(data.get(), i, int32_t(bits % bound));
      break;
    case rt::DType::I1:
      store(data.get(), i, char(bits % 4 != 0));
      break;
    }
  }
  return data;
}

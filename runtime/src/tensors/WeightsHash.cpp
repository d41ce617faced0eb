//===- WeightsHash.cpp - a hash of the weights of a model -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/WeightsHash.h"

#include "meshwright/runtime/src/bundle/Manifest.h"

namespace meshwright::rt {

/// The most elements of a tensor that are read.
static constexpr int64_t kSamples = 64;

/// An element of a tensor of `count` elements. The places of all samples are spread like random ones.
static int64_t getPlace(int64_t sample, int64_t count) {
  if (count <= kSamples)
    return sample;
  // The product wraps around, and its upper bits choose the place.
  uint64_t bits = (uint64_t(sample) + 1) * 0x9e3779b97f4a7c15;
  return int64_t((static_cast<unsigned __int128>(bits) * uint64_t(count)) >> 64);
}

void WeightsHash::add(const std::string &name, const HostTensor &tensor) {
  if (isComputedTable(name))
    return;
  Hash hash;
  size_t rank = tensor.shape.size();
  hash.add(reinterpret_cast<const char *>(tensor.shape.data()), rank * sizeof(int64_t));
  int64_t count = countOf(tensor.shape);
  const std::vector<int64_t> one(rank, 1);
  std::vector<int64_t> index(rank);
  for (int64_t sample = 0; sample < std::min(count, kSamples); ++sample) {
    int64_t left = getPlace(sample, count);
    for (size_t d = rank; d-- > 0; left /= tensor.shape[d])
      index[d] = left % tensor.shape[d];
    tensor.visitRuns(index, one, [&](const void *data, int64_t) {
      double value = loadAsDouble(tensor.type, data, 0);
      hash.add(reinterpret_cast<const char *>(&value), sizeof(value));
    });
  }
  tensors[name] = hash.get();
}

std::string WeightsHash::get() const {
  std::string text;
  for (const auto &[name, hash] : tensors)
    text += name + '\n' + hash + '\n';
  return text.empty() ? "" : hashOf(text.data(), text.size());
}

} // namespace meshwright::rt

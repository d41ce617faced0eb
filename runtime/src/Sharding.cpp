//===- Sharding.cpp - global arrays to local buffers and back -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Sharding.h"

#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

std::vector<int64_t> ShardedLayout::getGlobalShape() const {
  std::vector<int64_t> shape;
  for (const auto &dim : dims) {
    shape.push_back(1);
    for (const ShardedFactor &factor : dim)
      shape.back() *= factor.size;
  }
  return shape;
}

std::vector<int64_t> ShardedLayout::getLocalShape() const {
  std::vector<int64_t> shape;
  for (const auto &dim : dims) {
    shape.push_back(1);
    for (const ShardedFactor &factor : dim)
      shape.back() *= factor.padded / sizeOfGroup(factor.axes);
  }
  return shape;
}

bool ShardedLayout::isReplicated() const {
  for (const auto &dim : dims)
    for (const ShardedFactor &factor : dim)
      if (factor.size != factor.padded || sizeOfGroup(factor.axes) != 1)
        return false;
  return true;
}

namespace {
/// A rank's part of a global array, factor by factor.
struct Part {
  std::vector<int64_t> extents, globalStrides, localStrides;
  int64_t globalOffset = 0;
  bool padded = false;
  bool empty = false;
};
} // namespace

static Part partOf(const ShardedLayout &layout, int64_t rank,
                   const std::vector<int64_t> &dimStrides) {
  Part part;
  std::vector<int64_t> localSizes;
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    int64_t stride = dimStrides[d];
    for (const ShardedFactor &factor : layout.dims[d])
      stride *= factor.size;
    for (const ShardedFactor &factor : layout.dims[d]) {
      stride = factor.size ? stride / factor.size : 0;
      int64_t chunk = factor.padded / sizeOfGroup(factor.axes);
      int64_t begin = coordinateOf(factor.axes, rank) * chunk;
      int64_t extent = std::clamp<int64_t>(factor.size - begin, 0, chunk);
      part.padded |= extent < chunk;
      part.empty |= extent == 0;
      part.extents.push_back(extent);
      part.globalStrides.push_back(stride);
      part.globalOffset += extent ? begin * stride : 0;
      localSizes.push_back(chunk);
    }
  }
  part.localStrides = denseStrides(localSizes);
  return part;
}

void shard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *global,
           const std::vector<int64_t> &stored, const std::vector<int64_t> &offsets, void *local) {
  std::vector<int64_t> strides = denseStrides(stored.empty() ? layout.getGlobalShape() : stored);
  int64_t start = 0;
  for (size_t d = 0; d < offsets.size(); ++d)
    start += offsets[d] * strides[d];
  Part part = partOf(layout, rank, strides);
  if (part.padded) {
    int64_t count = 1;
    for (int64_t size : layout.getLocalShape())
      count *= size;
    std::memset(local, 0, count * elementSize);
  }
  if (!part.empty)
    copyStrided(static_cast<const char *>(global) + (start + part.globalOffset) * elementSize,
                part.globalStrides, static_cast<char *>(local), part.localStrides, part.extents,
                elementSize);
}

void unshard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *local,
             void *global) {
  Part part = partOf(layout, rank, denseStrides(layout.getGlobalShape()));
  if (!part.empty)
    copyStrided(static_cast<const char *>(local), part.localStrides,
                static_cast<char *>(global) + part.globalOffset * elementSize, part.globalStrides,
                part.extents, elementSize);
}

} // namespace meshwright::rt

//===- Sharding.cpp - global arrays to local buffers and back -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Sharding.h"
#include "meshwright/runtime/include/Axes.h"

#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
      if (factor.size != factor.padded || sizeOfGroup(factor.axes) != 1 ||
          factor.order != TokenOrder::Contiguous)
        return false;
  return true;
}

namespace {
/// A run of a factor's elements that a rank holds: consecutive local slots, whose global
/// elements are `step` apart.
struct Run {
  int64_t slot, element, step, count;
};

/// A box of a rank's part of a global array, with one run for each factor.
struct PartBox {
  std::vector<int64_t> extents, globalStrides;
  int64_t globalOffset = 0, localOffset = 0;
};

/// A rank's part of a global array, as boxes of its buffer.
struct Part {
  std::vector<PartBox> boxes{PartBox()};
  std::vector<int64_t> localStrides;
  bool padded = false;
};
} // namespace

/// Returns the elements of a factor that a rank holds, in as few runs as the factor's order
/// allows.
static std::vector<Run> runsOf(const ShardedFactor &factor, int64_t begin, int64_t chunk) {
  std::vector<Run> runs;
  int64_t count = std::clamp<int64_t>(factor.size - begin, 0, chunk);
  if (factor.order == TokenOrder::Contiguous) {
    if (count > 0)
      runs.push_back({0, begin, 1, count});
    return runs;
  }
  for (int64_t slot = 0; slot < count; ++slot) {
    int64_t element =
        getTokenInSlot(factor.order, factor.orderRanks, factor.size, factor.padded, begin + slot);
    Run *last = runs.empty() ? nullptr : &runs.back();
    if (last && last->count == 1 && element > last->element)
      last->step = element - last->element;
    if (last && element == last->element + last->step * last->count)
      ++last->count;
    else
      runs.push_back({slot, element, 1, 1});
  }
  return runs;
}

static Part partOf(const ShardedLayout &layout, int64_t rank,
                   const std::vector<int64_t> &dimStrides) {
  std::vector<int64_t> localSizes;
  for (const auto &dim : layout.dims)
    for (const ShardedFactor &factor : dim)
      localSizes.push_back(factor.padded / sizeOfGroup(factor.axes));
  Part part;
  part.localStrides = denseStrides(localSizes);
  size_t index = 0;
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    int64_t stride = dimStrides[d];
    for (const ShardedFactor &factor : layout.dims[d])
      stride *= factor.size;
    for (const ShardedFactor &factor : layout.dims[d]) {
      stride = factor.size ? stride / factor.size : 0;
      int64_t chunk = localSizes[index];
      int64_t begin = coordinateOf(factor.axes, rank) * chunk;
      part.padded |= factor.size - begin < chunk;
      std::vector<PartBox> boxes;
      for (const Run &run : runsOf(factor, begin, chunk))
        for (PartBox box : part.boxes) {
          box.extents.push_back(run.count);
          box.globalStrides.push_back(stride * run.step);
          box.globalOffset += run.element * stride;
          box.localOffset += run.slot * part.localStrides[index];
          boxes.push_back(std::move(box));
        }
      part.boxes = std::move(boxes);
      ++index;
    }
  }
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
  for (const PartBox &box : part.boxes)
    copyStrided(static_cast<const char *>(global) + (start + box.globalOffset) * elementSize,
                box.globalStrides, static_cast<char *>(local) + box.localOffset * elementSize,
                part.localStrides, box.extents, elementSize);
}

/// The runs of a rank's indices along a dimension of several factors.
static std::vector<Run> runsOf(const std::vector<ShardedFactor> &factors, int64_t rank) {
  // By index in the buffer; -1 for padding.
  std::vector<int64_t> elements{0};
  for (const ShardedFactor &factor : factors) {
    int64_t chunk = factor.padded / sizeOfGroup(factor.axes);
    std::vector<int64_t> inner(chunk, -1), outer = std::exchange(elements, {});
    for (const Run &run : runsOf(factor, coordinateOf(factor.axes, rank) * chunk, chunk))
      for (int64_t i = 0; i < run.count; ++i)
        inner[run.slot + i] = run.element + i * run.step;
    for (int64_t major : outer)
      for (int64_t minor : inner)
        elements.push_back(major < 0 || minor < 0 ? -1 : major * factor.size + minor);
  }
  std::vector<Run> runs;
  for (int64_t slot = 0; slot < int64_t(elements.size()); ++slot) {
    Run *last = runs.empty() ? nullptr : &runs.back();
    if (elements[slot] < 0)
      continue;
    if (last && last->slot + last->count == slot && last->element + last->count == elements[slot])
      ++last->count;
    else
      runs.push_back({slot, elements[slot], 1, 1});
  }
  return runs;
}

void shard(const ShardedLayout &layout, int64_t rank, int64_t elementSize,
           const std::vector<TensorPiece> &pieces, const std::vector<int64_t> &offsets,
           void *local) {
  std::vector<int64_t> shape = layout.getLocalShape(), strides = denseStrides(shape);
  std::vector<std::vector<Run>> runs;
  int64_t count = 1, filled = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    runs.push_back(runsOf(layout.dims[d], rank));
    int64_t here = 0;
    for (const Run &run : runs.back())
      here += run.count;
    count *= shape[d];
    filled *= here;
  }
  if (filled < count)
    std::memset(local, 0, count * elementSize);
  for (const TensorPiece &piece : pieces) {
    std::vector<PartBox> boxes{PartBox()};
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t first = piece.offsets[d] - (offsets.empty() ? 0 : offsets[d]);
      std::vector<PartBox> cut;
      for (const Run &run : runs[d]) {
        int64_t begin = std::max(run.element, first);
        int64_t end = std::min(run.element + run.count, first + piece.shape[d]);
        for (PartBox box : begin < end ? boxes : std::vector<PartBox>()) {
          box.extents.push_back(end - begin);
          box.globalOffset += (begin - first) * piece.strides[d];
          box.localOffset += (run.slot + begin - run.element) * strides[d];
          cut.push_back(std::move(box));
        }
      }
      boxes = std::move(cut);
    }
    for (const PartBox &box : boxes)
      copyStrided(static_cast<const char *>(piece.data) + box.globalOffset * elementSize,
                  piece.strides, static_cast<char *>(local) + box.localOffset * elementSize,
                  strides, box.extents, elementSize);
  }
}

std::vector<StridedBox> getShardBoxes(const ShardedLayout &layout, int64_t rank,
                                      int64_t elementSize) {
  Part part = partOf(layout, rank, denseStrides(layout.getGlobalShape()));
  std::vector<StridedBox> boxes;
  for (const PartBox &box : part.boxes) {
    StridedBox &copy = boxes.emplace_back();
    copy.extents = box.extents;
    copy.elementSize = elementSize;
    copy.toOffset = box.localOffset * elementSize;
    copy.fromOffset = box.globalOffset * elementSize;
    for (int64_t stride : part.localStrides)
      copy.toStrides.push_back(stride * elementSize);
    for (int64_t stride : box.globalStrides)
      copy.fromStrides.push_back(stride * elementSize);
  }
  return boxes;
}

void unshard(const ShardedLayout &layout, int64_t rank, int64_t elementSize, const void *local,
             void *global) {
  Part part = partOf(layout, rank, denseStrides(layout.getGlobalShape()));
  for (const PartBox &box : part.boxes)
    copyStrided(static_cast<const char *>(local) + box.localOffset * elementSize, part.localStrides,
                static_cast<char *>(global) + box.globalOffset * elementSize, box.globalStrides,
                box.extents, elementSize);
}

} // namespace meshwright::rt

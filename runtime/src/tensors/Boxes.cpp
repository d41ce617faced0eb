//===- Boxes.cpp - copying boxes of dense tensors -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Boxes.h"

#include <cstring>

namespace meshwright::rt {

std::vector<int64_t> denseStrides(const std::vector<int64_t> &shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * shape[i];
  return strides;
}

/// Copies element by element. The host's arrays need not be aligned.
template <typename T>
static void copyRow(const char *from, int64_t fromStride, char *to, int64_t toStride,
                    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, from + i * fromStride * int64_t(sizeof(T)), sizeof(T));
    std::memcpy(to + i * toStride * int64_t(sizeof(T)), &element, sizeof(T));
  }
}

void copyStrided(const char *from, const std::vector<int64_t> &fromStrides, char *to,
                 const std::vector<int64_t> &toStrides, const std::vector<int64_t> &extents,
                 int64_t elementSize) {
  // Merge neighbouring dimensions that are contiguous on both sides.
  std::vector<int64_t> size, source, destination;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] == 0)
      return;
    if (extents[i] == 1)
      continue;
    if (!size.empty() && source.back() == fromStrides[i] * extents[i] &&
        destination.back() == toStrides[i] * extents[i]) {
      size.back() *= extents[i];
      source.back() = fromStrides[i];
      destination.back() = toStrides[i];
    } else {
      size.push_back(extents[i]);
      source.push_back(fromStrides[i]);
      destination.push_back(toStrides[i]);
    }
  }
  // Source and destination are the same memory.
  if (from == to && source == destination)
    return;
  if (size.empty()) {
    std::memcpy(to, from, elementSize);
    return;
  }
  size_t last = size.size() - 1;
  bool dense = source[last] == 1 && destination[last] == 1;
  std::vector<int64_t> index(size.size(), 0);
  int64_t rows = 1;
  for (size_t i = 0; i < last; ++i)
    rows *= size[i];
  for (int64_t row = 0; row < rows; ++row) {
    const char *s = from;
    char *d = to;
    for (size_t i = 0; i < last; ++i) {
      s += index[i] * source[i] * elementSize;
      d += index[i] * destination[i] * elementSize;
    }
    if (dense)
      std::memcpy(d, s, size[last] * elementSize);
    else if (elementSize == 8)
      copyRow<uint64_t>(s, source[last], d, destination[last], size[last]);
    else if (elementSize == 4)
      copyRow<uint32_t>(s, source[last], d, destination[last], size[last]);
    else if (elementSize == 2)
      copyRow<uint16_t>(s, source[last], d, destination[last], size[last]);
    else
      copyRow<uint8_t>(s, source[last], d, destination[last], size[last]);
    for (size_t i = last; i-- > 0;) {
      if (++index[i] < size[i])
        break;
      index[i] = 0;
    }
  }
}

void copyBox(const void *from, const std::vector<int64_t> &fromShape,
             const std::vector<int64_t> &fromOffset, void *to, const std::vector<int64_t> &toShape,
             const std::vector<int64_t> &toOffset, const std::vector<int64_t> &extents,
             int64_t elementSize) {
  std::vector<int64_t> fromStrides = denseStrides(fromShape), toStrides = denseStrides(toShape);
  int64_t source = 0, destination = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    source += fromOffset[i] * fromStrides[i];
    destination += toOffset[i] * toStrides[i];
  }
  copyStrided(static_cast<const char *>(from) + source * elementSize, fromStrides,
              static_cast<char *>(to) + destination * elementSize, toStrides, extents, elementSize);
}

} // namespace meshwright::rt

//===- Boxes.h - copying boxes of dense tensors -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_BOXES_H
#define MESHWRIGHT_RUNTIME_INCLUDE_BOXES_H

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// A box of elements in two arrays. Strides and offsets are in bytes.
struct StridedBox {
  std::vector<int64_t> extents, toStrides, fromStrides;
  int64_t toOffset = 0, fromOffset = 0, elementSize = 1;

  int64_t getBytes() const {
    int64_t bytes = elementSize;
    for (int64_t extent : extents)
      bytes *= extent;
    return bytes;
  }
};

/// A box of a tensor that is stored apart from the others, such as the tensor of one expert. Strides
/// are in elements.
struct TensorPiece {
  /// The index in the tensor at which it begins.
  std::vector<int64_t> offsets;
  std::vector<int64_t> shape, strides;
  const void *data = nullptr;
};

/// Copies a box of `extents` elements of `elementSize` bytes between two dense row-major tensors,
/// from index `fromOffset` to index `toOffset`.
void copyBox(const void *from, const std::vector<int64_t> &fromShape,
             const std::vector<int64_t> &fromOffset, void *to, const std::vector<int64_t> &toShape,
             const std::vector<int64_t> &toOffset, const std::vector<int64_t> &extents,
             int64_t elementSize);

/// The same between addresses, with strides in elements.
void copyStrided(const char *from, const std::vector<int64_t> &fromStrides, char *to,
                 const std::vector<int64_t> &toStrides, const std::vector<int64_t> &extents,
                 int64_t elementSize);

/// Strides of a dense row-major tensor, in elements.
std::vector<int64_t> denseStrides(const std::vector<int64_t> &shape);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_BOXES_H

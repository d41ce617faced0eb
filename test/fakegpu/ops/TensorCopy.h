//===- TensorCopy.h - Tensor maps and the copies that use them ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_OPS_TENSORCOPY_H
#define FAKEGPU_OPS_TENSORCOPY_H

#include "interp/Warp.h"

namespace fakegpu {

/// The contents of a CUtensorMap. The layout is the stand-in's own.
struct TensorMap {
  static constexpr uint64_t kMagic = 0x70616d726f736e74u;
  uint64_t magic = 0, address = 0;
  uint64_t strides[4] = {}; // bytes, of dimensions 1 and up
  uint32_t sizes[5] = {};   // less one
  uint16_t box[5] = {};
  uint8_t steps[5] = {};
  uint8_t rank = 0, elementBytes = 0, swizzle = 0, fillNan = 0, isFloat = 0, bfloat = 0;

  uint32_t boxBytes() const {
    uint32_t bytes = elementBytes;
    for (unsigned d = 0; d < rank; ++d)
      bytes *= box[d];
    return bytes;
  }
};
static_assert(sizeof(TensorMap) <= 128, "a CUtensorMap has 128 bytes");

using TensorCoordinates = std::array<int32_t, 5>;

/// Reads a map at a generic address: a parameter of the kernel, or global memory.
TensorMap readTensorMap(Warp &w, const Inst &i, unsigned lane, uint64_t address);

/// Where byte `offset` of shared memory is under a swizzle of 0, 32, 64 or 128 bytes.
inline uint32_t swizzled(uint32_t offset, unsigned swizzle) {
  uint32_t rows = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return offset ^ ((offset >> 7 & rows) << 4);
}

/// Copies a box between the tensor and shared memory; `offset` is the box's place there. A load fills
/// elements outside of the tensor, a store leaves them out.
void loadTensor(const TensorMap &map, const TensorCoordinates &at, Warp &w, const Inst &i,
                unsigned lane, char *to, uint32_t offset);
void storeTensor(const TensorMap &map, const TensorCoordinates &at, Warp &w, const Inst &i,
                 unsigned lane, uint32_t offset);

} // namespace fakegpu

#endif

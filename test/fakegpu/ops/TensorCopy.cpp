//===- TensorCopy.cpp - Tensor maps and the copies that use them -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/TensorCopy.h"
#include "ops/MemoryAccess.h"

namespace fakegpu {

TensorMap readTensorMap(Warp &w, const Inst &i, unsigned lane, uint64_t address) {
  TensorMap map;
  const char *at;
  if (address % 64)
    raise(Fault::Misaligned, "a tensor map has to be aligned to 64 bytes", i, w, lane);
  if (address >> 56 == kParamWindow >> 56) {
    uint64_t offset = address - kParamWindow;
    if (offset + 128 > w.block->launch->params.size())
      raise(Fault::IllegalAddress, "the tensor map is outside of the parameters", i, w, lane);
    at = w.block->launch->params.data() + offset;
  } else {
    at = globalPointer(w, i, lane, address, 128, Access::Read);
  }
  memcpy(&map, at, sizeof map);
  if (map.magic != TensorMap::kMagic)
    raise(Fault::IllegalInstruction, "the address has no tensor map", i, w, lane);
  return map;
}

namespace {

/// Calls f(box offset in bytes, global address, inside) for each row of the box.
template <typename F> void eachRow(const TensorMap &map, const TensorCoordinates &at, F f) {
  uint32_t rowBytes = uint32_t(map.box[0]) * map.elementBytes, rows = map.boxBytes() / rowBytes;
  for (uint32_t row = 0; row < rows; ++row) {
    uint64_t address = map.address;
    bool inside = true;
    uint32_t rest = row;
    for (unsigned d = 1; d < map.rank; ++d) {
      int64_t c = int64_t(at[d]) + int64_t(rest % map.box[d]) * map.steps[d];
      rest /= map.box[d];
      inside &= c >= 0 && c <= int64_t(map.sizes[d]);
      address += uint64_t(c) * map.strides[d - 1];
    }
    f(row * rowBytes, address, inside);
  }
}

} // namespace

void loadTensor(const TensorMap &map, const TensorCoordinates &at, Warp &w, const Inst &i,
                unsigned lane, char *to, uint32_t offset) {
  uint32_t pattern = map.bfloat ? 0x7fff7fffu : map.elementBytes == 2 ? 0x7fff7fffu : 0x7fffffffu;
  eachRow(map, at, [&](uint32_t boxOffset, uint64_t address, bool rowInside) {
    for (unsigned e = 0; e < map.box[0]; ++e) {
      int64_t c = int64_t(at[0]) + int64_t(e) * map.steps[0];
      bool inside = rowInside && c >= 0 && c <= int64_t(map.sizes[0]);
      uint32_t place = swizzled(offset + boxOffset + e * map.elementBytes, map.swizzle) - offset;
      if (inside)
        memcpy(to + place,
               globalPointer(w, i, lane, address + uint64_t(c) * map.elementBytes, map.elementBytes, Access::Read),
               map.elementBytes);
      else if (map.fillNan && map.isFloat)
        memcpy(to + place, &pattern, map.elementBytes);
      else
        memset(to + place, 0, map.elementBytes);
    }
  });
}

void storeTensor(const TensorMap &map, const TensorCoordinates &at, Warp &w, const Inst &i,
                 unsigned lane, uint32_t offset) {
  const char *from = w.block->shared;
  eachRow(map, at, [&](uint32_t boxOffset, uint64_t address, bool rowInside) {
    for (unsigned e = 0; e < map.box[0]; ++e) {
      int64_t c = int64_t(at[0]) + e;
      if (!rowInside || c < 0 || c > int64_t(map.sizes[0]))
        continue;
      uint32_t place = swizzled(offset + boxOffset + e * map.elementBytes, map.swizzle);
      memcpy(globalPointer(w, i, lane, address + uint64_t(c) * map.elementBytes, map.elementBytes, Access::Write),
             from + place, map.elementBytes);
    }
  });
}

} // namespace fakegpu

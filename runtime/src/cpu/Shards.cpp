//===- Shards.cpp - a rank's own part of a sharded dimension --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CpuDevice.h"

#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/Calls.h"
#include "meshwright/TokenOrder.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt {

/// Copies a chunk of a replicated value. Elements of the chunk beyond the end of the value become
/// zeros.
static void sliceTensor(const mw_rt_moved_tensor &moved, int64_t chunk, const void *input,
                        void *output) {
  std::vector<int64_t> in(moved.in_shape, moved.in_shape + moved.rank);
  std::vector<int64_t> out(moved.out_shape, moved.out_shape + moved.rank);
  std::vector<int64_t> offset(moved.rank, 0), origin(moved.rank, 0), extents = out;
  int64_t size = sizeOf(DType(moved.dtype));
  offset[moved.dim] = chunk * out[moved.dim];
  extents[moved.dim] = std::clamp<int64_t>(in[moved.dim] - offset[moved.dim], 0, out[moved.dim]);
  if (extents[moved.dim] < out[moved.dim])
    std::memset(output, 0, countOf(out) * size);
  if (extents[moved.dim] > 0)
    copyBox(input, in, offset, output, out, origin, extents, size);
}

/// Makes a rank's part of a sum from the whole: the whole on the group's first rank, zeros on the
/// others. A part of a maximum is the whole.
static void writePart(const mw_rt_collective &what, const mw_rt_moved_tensor &moved,
                      int64_t coordinate, const void *input, void *output) {
  int64_t bytes = countBefore(moved) * sizeOf(DType(moved.dtype));
  if (coordinate == 0 || what.reduction == MW_RT_MAX)
    std::memcpy(output, input, bytes);
  else
    std::memset(output, 0, bytes);
}

void CpuDevice::cut(const mw_rt_collective &what, const void *const *inputs,
                    void *const *outputs) const {
  int64_t coordinate = coordinateOf(what.group, context.rank), chunks = sizeOfGroup(what.group);
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    if (kindOf(what) == CollectiveKind::Slice)
      sliceTensor(moved, (coordinate - moved.to_dim % chunks + chunks) % chunks, inputs[i],
                  outputs[i]);
    if (kindOf(what) == CollectiveKind::Partial)
      writePart(what, moved, coordinate, inputs[i], outputs[i]);
  }
}

/// Writes a value of type double as an element.
static void storeElement(DType type, double value, char *to) {
  switch (type) {
  case DType::F32: {
    float single = float(value);
    std::memcpy(to, &single, 4);
    return;
  }
  case DType::BF16:
  case DType::F16: {
    float single = float(value);
    narrow(type, &single, to, 1);
    return;
  }
  case DType::F64:
    std::memcpy(to, &value, 8);
    return;
  case DType::I64: {
    int64_t integer = int64_t(value);
    std::memcpy(to, &integer, 8);
    return;
  }
  case DType::I32: {
    int32_t integer = int32_t(value);
    std::memcpy(to, &integer, 4);
    return;
  }
  case DType::I1:
    *to = value != 0;
    return;
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    // Padding of codes is zero bits.
    *to = 0;
    return;
  }
}

bool CpuDevice::perform(const mw_rt_mask &what, void *const *buffers, std::string &) {
  const void *input = buffers[0];
  void *result = buffers[1];
  DType type = DType(what.dtype);
  int64_t size = sizeOf(type);
  std::memcpy(result, input, what.outer * what.rows * what.inner * size);
  int64_t first = what.size - coordinateOf(what.axes, context.rank) * what.rows;
  first = std::clamp<int64_t>(first, 0, what.rows);
  double value;
  std::memcpy(&value, &what.value, 8);
  char element[8];
  storeElement(type, value, element);
  for (int64_t o = 0; o < what.outer; ++o) {
    char *to = static_cast<char *>(result) + (o * what.rows + first) * what.inner * size;
    for (int64_t i = 0; i < (what.rows - first) * what.inner; ++i)
      std::memcpy(to + i * size, element, size);
  }
  return true;
}

bool CpuDevice::perform(const mw_rt_axis_index &what, void *const *buffers, std::string &) {
  int64_t value = coordinateOf(what.axes, context.rank) * what.chunk;
  if (DType(what.dtype) == DType::I32) {
    int32_t narrow = int32_t(value);
    std::memcpy(buffers[0], &narrow, 4);
  } else {
    std::memcpy(buffers[0], &value, 8);
  }
  return true;
}

bool CpuDevice::perform(const mw_rt_reorder &what, void *const *buffers, std::string &) {
  int64_t row = what.inner * sizeOf(DType(what.dtype));
  // The slot of each element in the input, by its index in contiguous order.
  std::vector<int64_t> slots(what.size);
  for (int64_t slot = 0; slot < what.size; ++slot)
    slots[getTokenInSlot(TokenOrder(what.from_order), what.from_ranks, what.size, what.padded,
                         slot)] = slot;
  for (int64_t outer = 0; outer < what.outer; ++outer) {
    const char *from = static_cast<const char *>(buffers[0]) + outer * what.padded * row;
    char *to = static_cast<char *>(buffers[1]) + outer * what.padded * row;
    for (int64_t slot = 0; slot < what.size; ++slot) {
      int64_t token =
          getTokenInSlot(TokenOrder(what.to_order), what.to_ranks, what.size, what.padded, slot);
      std::memcpy(to + slot * row, from + slots[token] * row, row);
    }
    std::memcpy(to + what.size * row, from + what.size * row, (what.padded - what.size) * row);
  }
  return true;
}

bool CpuDevice::perform(const mw_rt_place &what, void *const *buffers, std::string &) {
  int64_t ranks = sizeOfGroup(what.axes), own = coordinateOf(what.axes, context.rank);
  int64_t run = what.rows * what.inner * sizeOf(DType(what.dtype));
  char *to = static_cast<char *>(buffers[what.count]);
  if (what.count < ranks)
    std::memset(to, 0, what.outer * ranks * run);
  for (int64_t j = 0; j < what.count; ++j) {
    int64_t chunk = (own - getFollowing(what)[j] + ranks) % ranks;
    const char *from = static_cast<const char *>(buffers[j]);
    for (int64_t outer = 0; outer < what.outer; ++outer)
      std::memcpy(to + (outer * ranks + chunk) * run, from + outer * run, run);
  }
  return true;
}

bool CpuDevice::perform(const mw_rt_positions &what, void *const *buffers, std::string &) {
  int64_t chunks = sizeOfGroup(what.axes), count = what.padded / chunks;
  int64_t chunk = (coordinateOf(what.axes, context.rank) - what.shift + chunks) % chunks;
  int64_t size = what.has_size ? *static_cast<const int64_t *>(buffers[0]) : what.size;
  auto *positions = static_cast<int64_t *>(buffers[what.has_size]);
  for (int64_t i = 0; i < count; ++i) {
    int64_t position = getTokenInSlot(TokenOrder(what.order), what.order_ranks, what.size,
                                      what.padded, chunk * count + i);
    positions[i] = position < size ? position : -1;
  }
  return true;
}

} // namespace meshwright::rt

//===- GpuMoves.cpp - moves of elements on a GPU --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Coordinates of the rank are known on the host. Integers that depend on them are written to tables
// while an entry is prepared, and copied from there.
//
//===----------------------------------------------------------------------===//

#include "GpuDevice.h"

#include "meshwright/runtime/src/ranks/CallFacts.h"
#include "meshwright/runtime/src/ranks/Context.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/Calls.h"
#include "meshwright/TokenOrder.h"
#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

namespace meshwright::rt::gpu {

/// The table of an op, by its descriptor. `make` computes it the first time.
const char *GpuDevice::getTable(const void *descriptor,
                                const std::function<std::vector<int64_t>()> &make, bool isNarrow) {
  DeviceMemory &table = tables[descriptor];
  if (!table) {
    std::vector<int64_t> numbers = make();
    std::vector<int32_t> narrow(numbers.begin(), numbers.end());
    int64_t bytes = numbers.size() * (isNarrow ? sizeof(int32_t) : sizeof(int64_t));
    table = processor->allocate(bytes);
    if (!table)
      throw Failure("no memory on the GPU for " + formatBytes(bytes));
    processor->copyIn(table.get(),
                      isNarrow ? static_cast<const void *>(narrow.data()) : numbers.data(), bytes);
  }
  return table.get();
}

/// Writes a slice of a replicated value, or a partial sum.
void GpuDevice::cut(const Caller &, const mw_rt_collective &what, cuda::Stream *stream,
                    const void *const *inputs, void *const *outputs) {
  int64_t coordinate = coordinateOf(what.group, context.rank);
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    int64_t size = sizeOf(DType(moved.dtype));
    if (kindOf(what) == CollectiveKind::Partial) {
      int64_t bytes = countBefore(moved) * size;
      if (coordinate == 0 || what.reduction == MW_RT_MAX)
        helpers.copyBytes(stream, outputs[i], inputs[i], bytes);
      else
        helpers.clear(stream, outputs[i], bytes);
    }
    if (kindOf(what) != CollectiveKind::Slice)
      continue;
    int64_t chunks = sizeOfGroup(what.group);
    int64_t chunk = (coordinate - moved.to_dim % chunks + chunks) % chunks;
    std::vector<int64_t> in(moved.in_shape, moved.in_shape + moved.rank);
    std::vector<int64_t> out(moved.out_shape, moved.out_shape + moved.rank);
    std::vector<int64_t> offset(moved.rank, 0), origin(moved.rank, 0), extents = out;
    offset[moved.dim] = chunk * out[moved.dim];
    extents[moved.dim] = std::clamp<int64_t>(in[moved.dim] - offset[moved.dim], 0, out[moved.dim]);
    if (extents[moved.dim] < out[moved.dim])
      helpers.clear(stream, outputs[i], countOf(out) * size);
    if (extents[moved.dim] > 0)
      helpers.copyBox(stream, outputs[i], inputs[i],
                      Box::make(in, offset, out, origin, extents, size));
  }
}

/// The bits of a value as an element.
static uint64_t bitsOf(DType type, double value) {
  uint64_t bits = 0;
  float single = float(value);
  switch (type) {
  case DType::F32:
    std::memcpy(&bits, &single, 4);
    break;
  case DType::BF16:
    bits = floatToBf16(single);
    break;
  case DType::F16:
    bits = floatToF16(single);
    break;
  case DType::F64:
    std::memcpy(&bits, &value, 8);
    break;
  case DType::I64:
    bits = uint64_t(int64_t(value));
    break;
  case DType::I32:
    bits = uint32_t(int32_t(value));
    break;
  case DType::I1:
    bits = value != 0;
    break;
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    // Padding of codes is zero bits.
    break;
  }
  return bits;
}

bool GpuDevice::perform(const mw_rt_mask &what, void *const *buffers, std::string &) {
  cuda::Stream *stream = getStream(0);
  void *result = buffers[1];
  int64_t size = sizeOf(DType(what.dtype)), row = what.inner * size;
  helpers.copyBytes(stream, result, buffers[0], what.outer * what.rows * row);
  int64_t first = what.size - coordinateOf(what.axes, context.rank) * what.rows;
  first = std::clamp<int64_t>(first, 0, what.rows);
  double value;
  std::memcpy(&value, &what.value, 8);
  Box box;
  box.extents = {what.outer, (what.rows - first) * what.inner};
  box.toStrides = {what.rows * row, size};
  box.toOffset = first * row;
  box.elementSize = size;
  helpers.fillBox(stream, result, bitsOf(DType(what.dtype), value), box);
  return true;
}

bool GpuDevice::perform(const mw_rt_axis_index &what, void *const *buffers, std::string &) {
  bool isNarrow = DType(what.dtype) == DType::I32;
  const char *table = getTable(
      &what,
      [&] {
        return std::vector<int64_t>{coordinateOf(what.axes, context.rank) * what.chunk};
      },
      isNarrow);
  helpers.copyBytes(getStream(0), buffers[0], table, isNarrow ? 4 : 8);
  return true;
}

bool GpuDevice::perform(const mw_rt_reorder &what, void *const *buffers, std::string &) {
  const char *table = getTable(&what, [&] {
    // The slot of each element in the input, by its index in contiguous order.
    std::vector<int64_t> slots(what.size), from(what.padded);
    for (int64_t slot = 0; slot < what.size; ++slot)
      slots[getTokenInSlot(TokenOrder(what.from_order), what.from_ranks, what.size, what.padded,
                           slot)] = slot;
    for (int64_t slot = 0; slot < what.padded; ++slot)
      from[slot] = slot < what.size ? slots[getTokenInSlot(TokenOrder(what.to_order), what.to_ranks,
                                                           what.size, what.padded, slot)]
                                    : slot;
    return from;
  });
  helpers.gatherRows(getStream(0), buffers[1], buffers[0], table, what.outer, what.padded,
                     what.padded, what.inner * sizeOf(DType(what.dtype)));
  return true;
}

bool GpuDevice::perform(const mw_rt_place &what, void *const *buffers, std::string &) {
  cuda::Stream *stream = getStream(0);
  void *result = buffers[what.count];
  int64_t ranks = sizeOfGroup(what.axes), own = coordinateOf(what.axes, context.rank);
  int64_t size = sizeOf(DType(what.dtype)), run = what.rows * what.inner;
  if (what.count < ranks)
    helpers.clear(stream, result, what.outer * ranks * run * size);
  for (int64_t j = 0; j < what.count; ++j) {
    int64_t chunk = (own - getFollowing(what)[j] + ranks) % ranks;
    helpers.copyBox(stream, result, buffers[j],
                    Box::make({what.outer, run}, {0, 0}, {what.outer, ranks * run},
                              {0, chunk * run}, {what.outer, run}, size));
  }
  return true;
}

bool GpuDevice::perform(const mw_rt_positions &what, void *const *buffers, std::string &error) {
  if (what.has_size) {
    error = "positions behind a run-time size, in an order that is not contiguous, are not computed "
            "on GPUs";
    return false;
  }
  int64_t chunks = sizeOfGroup(what.axes), count = what.padded / chunks;
  const char *table = getTable(&what, [&] {
    int64_t chunk = (coordinateOf(what.axes, context.rank) - what.shift + chunks) % chunks;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < count; ++i)
      positions.push_back(getTokenInSlot(TokenOrder(what.order), what.order_ranks, what.size,
                                         what.padded, chunk * count + i));
    return positions;
  });
  helpers.copyBytes(getStream(0), buffers[0], table, count * int64_t(sizeof(int64_t)));
  return true;
}

//===----------------------------------------------------------------------===//
// Weights in the forms in which they travel
//===----------------------------------------------------------------------===//

bool GpuDevice::perform(const mw_rt_largest &what, void *const *buffers, std::string &) {
  helpers.findLargest(getStream(0), what.dtype, buffers[0], what.count, buffers[1]);
  return true;
}

bool GpuDevice::perform(const mw_rt_encode &what, void *const *buffers, std::string &) {
  cuda::Stream *stream = getStream(0);
  helpers.findNotFinite(stream, what.dtype, buffers[0], what.form.rows * what.form.columns,
                        /*existing=*/{}, nextWord(kWeightWord, what.form.kind));
  helpers.encode(stream, what.form, what.dtype, buffers[0], buffers[1], buffers[2]);
  return true;
}

bool GpuDevice::perform(const mw_rt_decode &what, void *const *buffers, std::string &) {
  helpers.decode(getStream(0), what.form, what.dtype, buffers[0], buffers[1]);
  return true;
}

//===----------------------------------------------------------------------===//
// Rows by index
//===----------------------------------------------------------------------===//

bool GpuDevice::perform(const mw_rt_note_rows &what, void *const *buffers, std::string &) {
  cuda::Stream *stream = getStream(0);
  if (buffers[1]) {
    int64_t bytes = sizeOf(DType(what.offset_dtype));
    void *first = nextWord(bytes == 4 ? kFirst32Word : kFirst64Word, what.layer);
    helpers.copyBytes(stream, first, buffers[1], bytes);
  }
  auto *offsets = static_cast<const int64_t *>(buffers[0]);
  for (int64_t i = 0; i <= what.experts; ++i) {
    void *word = nextWord(kOffsetWord, what.layer);
    if (i == 0)
      helpers.copyBytes(stream, word, offsets, (what.experts + 1) * sizeof(*offsets));
  }
  return true;
}

bool GpuDevice::perform(const mw_rt_note_dropped &what, void *const *buffers, std::string &) {
  helpers.countDropped(getStream(0), what.dtype, buffers[0], buffers[1], what.choices,
                       nextWord(kDroppedWord, what.layer));
  return true;
}

bool GpuDevice::perform(const mw_rt_index_copy &what, void *const *buffers, std::string &) {
  const mw_rt_rows &rows = what.rows;
  cuda::Stream *stream = getStream(0);
  int64_t row = rows.inner * sizeOf(DType(rows.dtype));
  helpers.checkIndices(stream, rows.index_dtype, buffers[1], rows.count, rows.size, rows.skips,
                       nextWord(-1, rows.size), nullptr);
  helpers.copyBytes(stream, buffers[3], buffers[0], rows.outer * rows.size * row);
  helpers.scatterRows(stream, rows.index_dtype, buffers[3], buffers[2], buffers[1], rows.outer,
                      rows.size, rows.count, row);
  return true;
}

bool GpuDevice::perform(const mw_rt_replace_rows &what, void *const *buffers, std::string &) {
  const mw_rt_rows &rows = what.rows;
  cuda::Stream *stream = getStream(0);
  int64_t row = rows.inner * sizeOf(DType(rows.dtype));
  char *log = buffers[3] ? static_cast<char *>(buffers[3]) + what.offset : nullptr;
  helpers.checkIndices(stream, rows.index_dtype, buffers[1], rows.count, rows.size, rows.skips,
                       nextWord(-1, rows.size), log);
  if (log)
    helpers.gatherRows(stream, log + getLoggedRows(rows.count), buffers[0], log, rows.outer,
                       rows.size, rows.count, row);
  helpers.scatterRows(stream, rows.index_dtype, buffers[0], buffers[2], buffers[1], rows.outer,
                      rows.size, rows.count, row);
  return true;
}

bool GpuDevice::undo(const mw_rt_call &call, void *const *buffers, std::string &error) {
  const auto *what = asCall<mw_rt_replace_rows>(call);
  if (!what)
    return refuse(call, error);
  const mw_rt_rows &rows = what->rows;
  const char *log = static_cast<const char *>(buffers[3]) + what->offset;
  try {
    processor->enter();
    helpers.scatterRows(processor->getCopyStream(), MW_I64, buffers[0],
                        log + getLoggedRows(rows.count), log, rows.outer, rows.size, rows.count,
                        rows.inner * sizeOf(DType(rows.dtype)));
    processor->finishCopies();
    return true;
  } catch (const Failure &failure) {
    error = failure.what();
    return false;
  }
}

} // namespace meshwright::rt::gpu

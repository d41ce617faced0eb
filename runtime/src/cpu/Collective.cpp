//===- Collective.cpp - entry of collectives, and those without sends -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Context.h"
#include "Moves.h"

#include "meshwright/TokenOrder.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstring>

using namespace meshwright::rt;

/// A chunk of a replicated value, with zeros behind its end.
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

/// Without communication.
static void cutLocally(const mw_rt_context &context, const mw_rt_collective &what,
                       const void *const *inputs, void *const *outputs) {
  int64_t coordinate = coordinateOf(what.group, context.rank);
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    if (what.kind == MW_RT_SLICE) {
      int64_t chunks = sizeOfGroup(what.group);
      int64_t chunk = (coordinate - moved.to_dim % chunks + chunks) % chunks;
      sliceTensor(moved, chunk, inputs[i], outputs[i]);
      continue;
    }
    int64_t bytes = countBefore(moved) * sizeOf(DType(moved.dtype));
    if (coordinate == 0)
      std::memcpy(outputs[i], inputs[i], bytes);
    else
      std::memset(outputs[i], 0, bytes);
  }
}

int32_t meshwright::rt::performCollective(mw_rt_context &context, int64_t stream, int64_t op,
                                          const mw_rt_collective &what, const void *const *inputs,
                                          void *const *outputs) {
  bool moves = what.kind == MW_RT_SLICE || what.kind == MW_RT_PARTIAL;
  Trace::Row *row =
      context.trace && stream ? &context.trace->getRow(context.rank, stream) : context.row;
  return guard(&context, op, [&] {
    {
      TraceScope scope(row, {0, 0, moves ? TraceKind::Move : TraceKind::Collective, op, 0,
                             row ? trafficOf(what, context.rank).bytes : 0, -1});
      if (moves)
        cutLocally(context, what, inputs, outputs);
      else if (!context.backend->run({context.rank, stream, op}, what, inputs, outputs))
        return 1;
    }
    for (int64_t i = 0; context.checkFinite && i < what.num_tensors; ++i) {
      const mw_rt_moved_tensor &moved = what.tensors[i];
      checkFinite(context, op, i, moved.dtype, outputs[i], countAfter(moved));
    }
    return 0;
  });
}

int32_t mw_rt_run_collective(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                             const void *const *inputs, void *const *outputs) {
  context->goTo(op);
  return performCollective(*context, 0, op, *what, inputs, outputs);
}

int32_t mw_rt_start(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                    int64_t stream, int64_t ticket, const void *const *inputs,
                    void *const *outputs) {
  return call(context, op, [&] {
    std::string error;
    return context->streams.start(op, *what, stream, ticket, inputs, outputs, error)
               ? 0
               : context->fail(op, error);
  });
}

int32_t mw_rt_wait(mw_rt_context *context, int64_t op, int64_t ticket) {
  return call(context, op, TraceKind::Wait, -1, 0, 0, [&] {
    std::string error;
    if (context->streams.wait(ticket, error))
      return 0;
    return error.empty() ? 1 : context->fail(op, error);
  });
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
  }
}

static void mask(const mw_rt_context *context, const mw_rt_mask *what, const void *input,
                 void *result) {
  DType type = DType(what->dtype);
  int64_t size = sizeOf(type);
  std::memcpy(result, input, what->outer * what->rows * what->inner * size);
  int64_t first = what->size - coordinateOf(what->axes, context->rank) * what->rows;
  first = std::clamp<int64_t>(first, 0, what->rows);
  double value;
  std::memcpy(&value, &what->value, 8);
  char element[8];
  storeElement(type, value, element);
  for (int64_t o = 0; o < what->outer; ++o) {
    char *to = static_cast<char *>(result) + (o * what->rows + first) * what->inner * size;
    for (int64_t i = 0; i < (what->rows - first) * what->inner; ++i)
      std::memcpy(to + i * size, element, size);
  }
}

int32_t mw_rt_run_mask(mw_rt_context *context, int64_t op, const mw_rt_mask *what,
                       const void *input, void *result) {
  int64_t bytes = what->outer * what->rows * what->inner * sizeOf(DType(what->dtype));
  return call(context, op, TraceKind::Move, what->dtype, 0, 2 * bytes, [&] {
    mask(context, what, input, result);
    return 0;
  });
}

int32_t mw_rt_run_axis_index(mw_rt_context *context, int64_t, const mw_rt_axis_index *what,
                             void *result) {
  int64_t value = coordinateOf(what->axes, context->rank) * what->chunk;
  if (DType(what->dtype) == DType::I32) {
    int32_t narrow = int32_t(value);
    std::memcpy(result, &narrow, 4);
  } else {
    std::memcpy(result, &value, 8);
  }
  return 0;
}

int32_t mw_rt_run_reorder(mw_rt_context *context, int64_t op, const mw_rt_reorder *what,
                          const void *input, void *result) {
  int64_t row = what->inner * sizeOf(DType(what->dtype)), bytes = what->outer * what->padded * row;
  return call(context, op, TraceKind::Move, what->dtype, 0, 2 * bytes, [&] {
    // Where each true element is.
    std::vector<int64_t> slots(what->size);
    for (int64_t slot = 0; slot < what->size; ++slot)
      slots[meshwright::getTokenInSlot(meshwright::TokenOrder(what->from_order), what->from_ranks,
                                       what->size, what->padded, slot)] = slot;
    for (int64_t outer = 0; outer < what->outer; ++outer) {
      const char *from = static_cast<const char *>(input) + outer * what->padded * row;
      char *to = static_cast<char *>(result) + outer * what->padded * row;
      for (int64_t slot = 0; slot < what->size; ++slot) {
        int64_t token = meshwright::getTokenInSlot(meshwright::TokenOrder(what->to_order),
                                                   what->to_ranks, what->size, what->padded, slot);
        std::memcpy(to + slot * row, from + slots[token] * row, row);
      }
      std::memcpy(to + what->size * row, from + what->size * row,
                  (what->padded - what->size) * row);
    }
    return 0;
  });
}

int32_t mw_rt_run_positions(mw_rt_context *context, int64_t, const mw_rt_positions *what,
                            void *result) {
  int64_t chunks = sizeOfGroup(what->axes), count = what->padded / chunks;
  int64_t chunk = (coordinateOf(what->axes, context->rank) - what->shift + chunks) % chunks;
  for (int64_t i = 0; i < count; ++i)
    static_cast<int64_t *>(result)[i] =
        meshwright::getTokenInSlot(meshwright::TokenOrder(what->order), what->order_ranks,
                                   what->size, what->padded, chunk * count + i);
  return 0;
}

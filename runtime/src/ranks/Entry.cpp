//===- Entry.cpp - the calls of compiled programs -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each function of meshwright-c/Runtime.h that a program calls. A call notes the op that
// the rank is at, records an event of the trace, asks the rank's device to do the work, and
// looks for values that are not finite where the run asks for that.
//
//===----------------------------------------------------------------------===//

#include "Context.h"
#include "GemmShape.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Packing.h"
#include "meshwright/runtime/include/Types.h"

namespace meshwright::rt {

/// Performs one op of the compute stream.
template <typename Body> static int32_t call(mw_rt_context &context, int64_t op, Body body) {
  context.goTo(op);
  return guard(context, op, body);
}

namespace {
/// An op of the compute stream, as an event of the trace.
class OpScope {
public:
  OpScope(mw_rt_context &context, const TraceEvent &event)
      : device(*context.device), isMeasured(context.row && device.hasClock()),
        scope(isMeasured ? nullptr : context.row, event) {
    if (isMeasured)
      device.beginOp(event);
  }
  ~OpScope() {
    if (isMeasured)
      device.endOp();
  }

private:
  Device &device;
  const bool isMeasured;
  TraceScope scope;
};
} // namespace

/// The same as an event of the trace. The results of the op are of type `dtype`.
template <typename Body>
static int32_t call(mw_rt_context &context, int64_t op, TraceKind kind, int64_t dtype,
                    int64_t flops, int64_t bytes, Body body) {
  return call(context, op, [&](std::string &error) {
    OpScope scope(context, {0, 0, kind, op, flops, bytes, dtype});
    return body(error);
  });
}

/// Looks for values of a result that are not finite, if the run asks for that.
static bool checkFinite(mw_rt_context &context, const Caller &caller, int64_t result, int64_t dtype,
                        const void *data, int64_t count, std::string &error) {
  return !context.checkFinite || !data ||
         context.device->checkFinite(caller, result, dtype, data, count, error);
}

/// The same for an op of the compute stream.
static bool checkFinite(mw_rt_context &context, int64_t op, int64_t result, int64_t dtype,
                        const void *data, int64_t count, std::string &error) {
  return checkFinite(context, {context.rank, 0, op}, result, dtype, data, count, error);
}

int32_t performCollective(mw_rt_context &context, const Caller &caller,
                          const mw_rt_collective &what, const void *const *inputs,
                          void *const *outputs) {
  Trace::Row *row = context.device->hasClock() ? nullptr
                    : context.trace && caller.stream
                        ? &context.trace->getRow(context.rank, caller.stream)
                        : context.row;
  TraceKind kind = communicates(what) ? TraceKind::Collective : TraceKind::Move;
  return guard(context, caller.op, [&](std::string &error) {
    {
      TraceScope scope(
          row, {0, 0, kind, caller.op, 0, row ? trafficOf(what, context.rank).bytes : 0, -1});
      if (!context.device->runCollective(caller, what, inputs, outputs, error))
        return false;
    }
    for (int64_t i = 0; context.checkFinite && i < what.num_tensors; ++i) {
      const mw_rt_moved_tensor &moved = what.tensors[i];
      if (!checkFinite(context, caller, i, moved.dtype, outputs[i], countAfter(moved), error))
        return false;
    }
    return true;
  });
}

} // namespace meshwright::rt

using namespace meshwright::rt;

//===----------------------------------------------------------------------===//
// Kernels and products
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_kernel(mw_rt_context *context, int64_t op, const mw_rt_launch *what,
                         mw_rt_kernel kernel, void *const *buffers) {
  int64_t dtype = what->num_outputs > 0 ? what->outputs[0].dtype : -1;
  return call(*context, op, TraceKind(what->kind), dtype, what->flops, what->bytes,
              [&](std::string &error) {
                if (!context->device->launch(*what, kernel, buffers, error))
                  return false;
                for (int64_t i = 0; context->checkFinite && i < what->num_outputs; ++i)
                  if (!checkFinite(*context, op, i, what->outputs[i].dtype,
                                   buffers[what->num_inputs + i], what->outputs[i].count, error))
                    return false;
                return true;
              });
}

int32_t mw_rt_run_gemm(mw_rt_context *context, int64_t op, const mw_rt_gemm *what, const void *a,
                       const void *b, const void *bias, void *c) {
  int64_t batch = batchOf(*what), results = batch * what->m * what->n;
  int64_t elements = matricesOf(*what, what->stride_a) * what->m * what->k +
                     matricesOf(*what, what->stride_b) * what->k * what->n;
  int64_t bytes = elements * sizeOf(DType(what->dtype)) + results * sizeOf(DType(what->result));
  return call(*context, op, TraceKind::Gemm, what->dtype, 2 * results * what->k, bytes,
              [&](std::string &error) {
                return context->device->multiply(*what, a, b, bias, c, error) &&
                       checkFinite(*context, op, 0, what->result, c, results, error);
              });
}

int32_t mw_rt_run_weight_grad(mw_rt_context *context, int64_t op, const mw_rt_weight_grad *what,
                              const void *a, const void *b, void *c) {
  DType type = DType(what->dtype), sum = type == DType::F64 ? DType::F64 : DType::F32;
  int64_t results = what->m * what->n;
  int64_t bytes = what->rows * (what->m + what->n) * sizeOf(type) + results * sizeOf(sum);
  return call(*context, op, TraceKind::Gemm, what->dtype, 2 * results * what->rows, bytes,
              [&](std::string &error) {
                return context->device->weightGrad(*what, a, b, c, error) &&
                       checkFinite(*context, op, 0, int64_t(sum), c, results, error);
              });
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_collective(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                             const void *const *inputs, void *const *outputs) {
  context->goTo(op);
  return performCollective(*context, {context->rank, 0, op}, *what, inputs, outputs);
}

int32_t mw_rt_start(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                    int64_t stream, int64_t ticket, const void *const *inputs,
                    void *const *outputs) {
  return call(*context, op, [&](std::string &error) {
    return context->device->start({context->rank, stream, op}, *what, ticket, inputs, outputs,
                                  error);
  });
}

int32_t mw_rt_wait(mw_rt_context *context, int64_t op, int64_t ticket) {
  return call(*context, op, TraceKind::Wait, -1, 0, 0,
              [&](std::string &error) { return context->device->wait(ticket, error); });
}

int32_t mw_rt_graph_begin(mw_rt_context *context, int64_t op) {
  return call(*context, op,
              [&](std::string &error) { return context->device->beginGraph(op, error); });
}

int32_t mw_rt_graph_end(mw_rt_context *context, int64_t op) {
  return call(*context, op,
              [&](std::string &error) { return context->device->endGraph(op, error); });
}

//===----------------------------------------------------------------------===//
// Moves
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_gather(mw_rt_context *context, int64_t op, const mw_rt_gather *what,
                         const void *data, const void *indices, const void *offset, void *result) {
  int64_t count = what->outer * what->count * what->inner;
  int64_t bytes = 2 * count * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    return context->device->gather(*what, data, indices, offset, result, error) &&
           checkFinite(*context, op, 0, what->dtype, result, count, error);
  });
}

int32_t mw_rt_run_take_along(mw_rt_context *context, int64_t op, const mw_rt_take_along *what,
                             const void *data, const void *indices, void *result) {
  int64_t count = what->outer * what->count * what->inner;
  int64_t bytes = 2 * count * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    return context->device->takeAlong(*what, data, indices, result, error) &&
           checkFinite(*context, op, 0, what->dtype, result, count, error);
  });
}

int32_t mw_rt_run_index_copy(mw_rt_context *context, int64_t op, const mw_rt_index_copy *what,
                             const void *data, const void *indices, const void *source,
                             void *result) {
  int64_t rows = what->outer * what->size * what->inner;
  int64_t bytes = 2 * (rows + what->outer * what->count * what->inner) * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    return context->device->indexCopy(*what, data, indices, source, result, error) &&
           checkFinite(*context, op, 0, what->dtype, result, rows, error);
  });
}

int32_t mw_rt_replace_rows(mw_rt_context *context, int64_t op, const mw_rt_index_copy *what,
                           int64_t offset, const void *state, const void *indices,
                           const void *source, const void *log) {
  int64_t count = what->outer * what->count * what->inner;
  int64_t bytes = (log ? 4 : 2) * count * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    // The caller of the entry owns the state and the log, and lets the entry write them.
    auto *data = const_cast<void *>(state);
    char *rows = log ? const_cast<char *>(static_cast<const char *>(log)) + offset : nullptr;
    if (!context->device->saveRows(*what, data, indices, rows, error))
      return false;
    if (rows)
      context->replaced.push_back({what, data, rows});
    return context->device->indexCopy(*what, data, indices, source, data, error) &&
           checkFinite(*context, op, 0, what->dtype, source, count, error);
  });
}

int32_t mw_rt_run_scatter_add(mw_rt_context *context, int64_t op, const mw_rt_scatter_add *what,
                              const void *updates, const void *indices, const void *offset,
                              void *result) {
  DType type = DType(what->dtype), sum = type == DType::F64 ? DType::F64 : DType::F32;
  int64_t added = what->outer * what->count * what->inner;
  int64_t rows = what->outer * what->size * what->inner;
  int64_t bytes = added * sizeOf(type) + rows * sizeOf(sum);
  return call(*context, op, TraceKind::Move, what->dtype, added, bytes, [&](std::string &error) {
    return context->device->scatterAdd(*what, updates, indices, offset, result, error) &&
           checkFinite(*context, op, 0, int64_t(sum), result, rows, error);
  });
}

int32_t mw_rt_run_mask(mw_rt_context *context, int64_t op, const mw_rt_mask *what,
                       const void *input, void *result) {
  int64_t bytes = what->outer * what->rows * what->inner * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, 2 * bytes, [&](std::string &error) {
    return context->device->mask(*what, input, result, error);
  });
}

int32_t mw_rt_run_reorder(mw_rt_context *context, int64_t op, const mw_rt_reorder *what,
                          const void *input, void *result) {
  int64_t bytes = what->outer * what->padded * what->inner * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, 2 * bytes, [&](std::string &error) {
    return context->device->reorder(*what, input, result, error);
  });
}

int32_t mw_rt_run_place(mw_rt_context *context, int64_t op, const mw_rt_place *what,
                        const void *const *chunks, void *const *result) {
  int64_t rows = what->rows * (what->count + sizeOfGroup(what->axes));
  int64_t bytes = what->outer * rows * what->inner * sizeOf(DType(what->dtype));
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    return context->device->place(*what, chunks, *result, error);
  });
}

int32_t mw_rt_run_axis_index(mw_rt_context *context, int64_t op, const mw_rt_axis_index *what,
                             void *result) {
  return call(*context, op, [&](std::string &error) {
    return context->device->writeAxisIndex(*what, result, error);
  });
}

int32_t mw_rt_run_pack(mw_rt_context *context, int64_t op, const mw_rt_packing *what,
                       const void *weight, void *result) {
  int64_t bytes = what->k * what->n * sizeOf(DType(what->stored)) + sizeOfPacked(*what);
  return call(*context, op, TraceKind::Move, what->dtype, 0, bytes, [&](std::string &error) {
    return context->device->pack(*what, weight, result, error);
  });
}

int32_t mw_rt_run_positions(mw_rt_context *context, int64_t op, const mw_rt_positions *what,
                            void *result) {
  return call(*context, op, [&](std::string &error) {
    return context->device->writePositions(*what, result, error);
  });
}

//===----------------------------------------------------------------------===//
// Probes
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_probe(mw_rt_context *context, int64_t op, int64_t probe, const void *value) {
  return call(*context, op, [&](std::string &) {
    if (const World::Probe &watch = context->world->getProbe())
      watch(context->rank, probe, value);
    return true;
  });
}

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

#include "CallFacts.h"
#include "Context.h"
#include "meshwright/runtime/src/tensors/Moves.h"

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

/// The same as an event of the trace, which has no times yet.
template <typename Body>
static int32_t call(mw_rt_context &context, const TraceEvent &event, Body body) {
  return call(context, event.op, [&](std::string &error) {
    OpScope scope(context, event);
    return body(error);
  });
}

/// Looks for values of a result that are not finite, if the run asks for that.
static bool checkFinite(mw_rt_context &context, const Caller &caller, int64_t result, int64_t dtype,
                        const void *data, int64_t count, const ExistingRows &existing, std::string &error) {
  return !context.checkFinite || !data ||
         context.device->checkFinite(caller, result, dtype, data, count, existing, error);
}

/// The same for an op of the compute stream.
static bool checkFinite(mw_rt_context &context, int64_t op, int64_t result, int64_t dtype,
                        const void *data, int64_t count, const ExistingRows &existing, std::string &error) {
  return checkFinite(context, {context.rank, 0, op}, result, dtype, data, count, existing, error);
}

int32_t performCollective(mw_rt_context &context, const Caller &caller,
                          const mw_rt_collective &what, const void *const *inputs,
                          void *const *outputs) {
  Trace::Row *row = context.device->hasClock() ? nullptr
                    : context.trace && caller.stream
                        ? &context.trace->getRow(context.rank, caller.stream)
                        : context.row;
  return guard(context, caller.op, [&](std::string &error) {
    TraceKind kind = communicates(what) ? TraceKind::Collective : TraceKind::Move;
    {
      TraceEvent event{0, 0, kind, caller.op};
      if (row) {
        event.bytes = trafficOf(what, context.rank).bytes;
        event.group = firstOfGroup(what, context.rank);
      }
      TraceScope scope(row, event);
      if (!context.device->runCollective(caller, what, inputs, outputs, error))
        return false;
    }
    for (int64_t i = 0; context.checkFinite && i < what.num_tensors; ++i) {
      const mw_rt_moved_tensor &moved = what.tensors[i];
      if (!moved.counted && !checkFinite(context, caller, i, moved.dtype, outputs[i], countAfter(moved), {}, error))
        return false;
    }
    return true;
  });
}

int32_t performExchange(mw_rt_context &context, const Caller &caller, const mw_rt_call &what,
                        void *const *buffers) {
  CallFacts facts = getFacts(what, buffers);
  Trace::Row *row = context.trace && !context.device->hasClock()
                        ? &context.trace->getRow(context.rank, caller.stream)
                        : nullptr;
  return guard(context, caller.op, [&](std::string &error) {
    {
      TraceScope scope(row, {0, 0, *facts.kind, caller.op, facts.flops, facts.bytes, facts.dtype,
                             firstOfGroup(*facts.group, context.rank)});
      if (!context.device->perform(caller, what, buffers, error))
        return false;
    }
    return checkFinite(context, caller, 0, facts.checkedType, facts.checked, facts.checkedCount, {}, error);
  });
}

} // namespace meshwright::rt

using namespace meshwright::rt;

//===----------------------------------------------------------------------===//
// Kernels and calls
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_kernel(mw_rt_context *context, int64_t op, const mw_rt_launch *what,
                         mw_rt_kernel kernel, void *const *buffers) {
  int64_t dtype = what->num_outputs > 0 ? what->outputs[0].dtype : -1;
  RowCount rows;
  if (what->rows) {
    rows.rows = what->rows;
    rows.number = static_cast<const int64_t *>(buffers[what->counter]) + what->last;
  }
  auto getPart = [&](int64_t ofAll) { return rows.getPart(*context->device, ofAll); };
  return call(*context, {0, 0, TraceKind(what->kind), op, getPart(what->flops), getPart(what->bytes), dtype},
              [&](std::string &error) {
                if (!context->device->launch(*what, kernel, buffers, error))
                  return false;
                for (int64_t i = 0; context->checkFinite && i < what->num_outputs; ++i)
                  if (!checkFinite(*context, op, i, what->outputs[i].dtype, buffers[what->num_inputs + i],
                                   what->outputs[i].count, {rows.rows, rows.number}, error))
                    return false;
                return true;
              });
}

int32_t mw_rt_perform(mw_rt_context *context, int64_t op, const mw_rt_call *what,
                      void *const *buffers) {
  CallFacts facts = getFacts(*what, buffers);
  auto getPart = [&](int64_t ofAll) { return facts.rowCount.getPart(*context->device, ofAll); };
  auto body = [&](std::string &error) {
    if (!context->device->perform({context->rank, 0, op}, *what, buffers, error))
      return false;
    if (facts.logged > 0)
      context->logged.push_back({what, {buffers, buffers + facts.logged}});
    int64_t count = facts.checksRows ? getPart(facts.checkedCount) : facts.checkedCount;
    return checkFinite(*context, op, 0, facts.checkedType, facts.checked, count, {}, error);
  };
  if (!facts.kind)
    return call(*context, op, body);
  int64_t group = facts.group ? firstOfGroup(*facts.group, context->rank) : -1;
  return call(*context, {0, 0, *facts.kind, op, getPart(facts.flops), getPart(facts.bytes), facts.dtype, group}, body);
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

int32_t mw_rt_start_call(mw_rt_context *context, int64_t op, const mw_rt_call *what, int64_t stream,
                         int64_t ticket, void *const *buffers) {
  return call(*context, op, [&](std::string &error) {
    if (getFacts(*what, buffers).group)
      return context->device->start({context->rank, stream, op}, *what, ticket, buffers, error);
    error = "expected to start a call in which ranks meet, got one of kind " + std::to_string(what->kind);
    return false;
  });
}

int32_t mw_rt_wait(mw_rt_context *context, int64_t op, int64_t ticket) {
  return call(*context, {0, 0, TraceKind::Wait, op},
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
// Probes
//===----------------------------------------------------------------------===//

int32_t mw_rt_run_probe(mw_rt_context *context, int64_t op, int64_t probe, const void *value) {
  return call(*context, op, [&](std::string &) {
    if (const World::Probe &watch = context->world->getProbe())
      watch(context->rank, probe, value);
    return true;
  });
}

//===- Context.h - a rank that this process hosts ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CONTEXT_H
#define MESHWRIGHT_RUNTIME_SRC_CONTEXT_H

#include "Fault.h"
#include "cpu/Gemm.h"
#include "cpu/Streams.h"
#include "cpu/Workers.h"

#include "meshwright/runtime/include/Trace.h"
#include "meshwright/runtime/include/World.h"

#include <new>

struct mw_rt_context {
  mw_rt_context(meshwright::rt::World &world, meshwright::rt::Backend &backend, int64_t rank)
      : world(&world), backend(&backend), rank(rank), streams(*this) {}

  meshwright::rt::World *world;
  meshwright::rt::Backend *backend;
  int64_t rank;
  meshwright::rt::GemmCache gemms;
  /// Reused from call to call.
  std::vector<char> scratch[5];

  /// The compute stream, between runs idle.
  std::thread thread;
  bool running = false;
  std::unique_ptr<meshwright::rt::Workers> workers;
  meshwright::rt::Streams streams;

  /// Of the current run.
  bool checkFinite = false;
  meshwright::rt::Trace *trace = nullptr;
  meshwright::rt::Trace::Row *row = nullptr;
  const meshwright::rt::Fault *fault = nullptr;
  /// The op that the compute stream is at, or that it waits for: only its thread
  /// says so. How many calls all streams have made.
  std::atomic<int64_t> position{-1}, calls{0};

  void goTo(int64_t op) { position.store(op, std::memory_order_relaxed); }

  char *getScratch(int slot, int64_t bytes) {
    if (int64_t(scratch[slot].size()) < bytes)
      scratch[slot].resize(bytes);
    return scratch[slot].data();
  }
  int32_t fail(int64_t op, const std::string &message) {
    world->fail(rank, op, message);
    return 1;
  }
};

namespace meshwright::rt {

/// What all that a rank does goes through, on whatever stream: does nothing after a
/// failure, and turns exceptions into failures, since nothing may unwind through
/// compiled code.
template <typename Body> int32_t guard(mw_rt_context *context, int64_t op, Body body) {
  if (context->world->hasFailed())
    return 1;
  context->calls.fetch_add(1, std::memory_order_relaxed);
  try {
    if (context->fault)
      context->fault->strike(*context, op);
    return body();
  } catch (const std::bad_alloc &) {
    return context->fail(op, "out of memory");
  } catch (const std::exception &failure) {
    return context->fail(op, failure.what());
  }
}

/// The same for every call of a program into the runtime, on its compute stream:
/// says where the rank is.
template <typename Body> int32_t call(mw_rt_context *context, int64_t op, Body body) {
  context->goTo(op);
  return guard(context, op, body);
}

/// The same, as an event of the trace; its results are of type `dtype`.
template <typename Body>
int32_t call(mw_rt_context *context, int64_t op, TraceKind kind, int64_t dtype, int64_t flops,
             int64_t bytes, Body body) {
  return call(context, op, [&] {
    TraceScope scope(context->row, {0, 0, kind, op, flops, bytes, dtype});
    return body();
  });
}

/// A collective on one of the rank's streams, as an event of its row; by any thread.
int32_t performCollective(mw_rt_context &context, int64_t stream, int64_t op,
                          const mw_rt_collective &what, const void *const *inputs,
                          void *const *outputs);

/// With `checkFinite`: tells the world if a result is not finite.
void checkFinite(mw_rt_context &context, int64_t op, int64_t result, int64_t dtype,
                 const void *data, int64_t count);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CONTEXT_H

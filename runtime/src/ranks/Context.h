//===- Context.h - a rank that this process hosts ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_CONTEXT_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_CONTEXT_H

#include "meshwright/runtime/src/process/Fault.h"

#include "meshwright/runtime/include/Device.h"
#include "meshwright/runtime/include/ExpertRows.h"
#include "meshwright/runtime/include/Trace.h"
#include "meshwright/runtime/include/World.h"

#include <map>
#include <mutex>
#include <new>

/// A rank that this process hosts: its device, its thread, and its state in the current run.
struct mw_rt_context {
  mw_rt_context(meshwright::rt::World &world, int64_t rank) : world(&world), rank(rank) {}

  meshwright::rt::World *world;
  int64_t rank;
  std::unique_ptr<meshwright::rt::Device> device;

  /// Runs the entry. Sleeps between runs.
  std::thread thread;
  bool running = false;

  // The rest describes the current run.
  bool checkFinite = false;
  meshwright::rt::GraphUse graphs = meshwright::rt::GraphUse::Auto;
  meshwright::rt::Trace *trace = nullptr;
  /// The compute stream's row of the trace.
  meshwright::rt::Trace::Row *row = nullptr;
  const meshwright::rt::Fault *fault = nullptr;
  /// Rows of experts of the run, by the number of the routing. All streams add some: `noteExperts`.
  std::map<int64_t, meshwright::rt::ExpertRows> experts;
  std::mutex expertsMutex;
  /// The calls of the run that have logs, in order, and their buffers.
  std::vector<std::pair<const mw_rt_call *, std::vector<void *>>> logged;
  /// `position` is the op that the compute stream is at or waits for. `calls` counts the
  /// calls of all streams. Relaxed order is enough for both: each is a single number that
  /// other threads read only to describe or to notice progress, and no other data is
  /// published through it.
  std::atomic<int64_t> position{-1}, calls{0};

  /// Only the rank's thread calls this.
  void goTo(int64_t op) { position.store(op, std::memory_order_relaxed); }
  /// Calls `note` with what reports say of the experts of a routing, unless it has no number (-1).
  template <typename Note> void noteExperts(int64_t layer, Note note) {
    if (layer < 0)
      return;
    std::lock_guard<std::mutex> lock(expertsMutex);
    note(experts[layer]);
  }
  int32_t fail(int64_t op, const std::string &message) {
    world->fail(rank, op, message);
    return 1;
  }
};

namespace meshwright::rt {

/// Performs one op of a rank, on any of its streams; `body` takes a string for an error and
/// returns false after a failure, as the functions of `Device` do. Does nothing after a
/// failure of the run. Turns exceptions into failures, since nothing may unwind through
/// compiled code. Returns 0, or 1 after a failure.
template <typename Body> int32_t guard(mw_rt_context &context, int64_t op, Body body) {
  if (context.world->hasFailed())
    return 1;
  context.calls.fetch_add(1, std::memory_order_relaxed);
  try {
    if (context.fault)
      context.fault->strike(context, op);
    std::string error;
    if (body(error))
      return 0;
    return error.empty() ? 1 : context.fail(op, error);
  } catch (const std::bad_alloc &) {
    return context.fail(op, "out of memory");
  } catch (const std::exception &failure) {
    return context.fail(op, failure.what());
  }
}

/// Performs a collective on one of the rank's streams, as an event of that stream's row in
/// the trace. The stream's thread calls this. Returns 0, or 1 after a failure.
int32_t performCollective(mw_rt_context &context, const Caller &caller,
                          const mw_rt_collective &what, const void *const *inputs,
                          void *const *outputs);
/// The same for a call in which ranks meet, on a communication stream.
int32_t performExchange(mw_rt_context &context, const Caller &caller, const mw_rt_call &what,
                        void *const *buffers);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_CONTEXT_H

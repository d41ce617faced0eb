//===- Workers.h - the threads of a rank ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H

#include "meshwright/runtime/src/process/Signal.h"

#include "meshwright/runtime/include/Memory.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace meshwright::rt {

/// Memory that grows on demand and is kept.
class Workspace {
public:
  /// Returns at least `bytes` bytes. Earlier contents are lost if it grows. Throws std::bad_alloc.
  void *get(int64_t bytes);

private:
  Memory memory;
  int64_t capacity = 0;
};

/// The threads that a rank computes with: the calling thread and its helpers.
///
/// - Helpers are kept from run to run and sleep between launches.
/// - Each part of a launch is done by exactly one thread. A part belongs to the thread whose
///   exchange of `isTaken` returns false: the helper, or the caller if it finishes its own part
///   before the helper begins.
class Workers {
public:
  /// A function that does part `index` of `count` parts.
  using Part = void (*)(void *state, int64_t index, int64_t count);

  /// Makes `count` threads, the caller's included. Throws std::system_error if one cannot start.
  Workers(int64_t rank, int64_t count);
  ~Workers();

  int64_t getCount() const { return int64_t(helpers.size()) + 1; }
  void setSpin(int64_t nanoseconds) { spin = nanoseconds; }

  /// Does parts 0 to `count` - 1 at once and returns when all are done. `count` is at most the
  /// number of threads. The caller does part 0 and then each part that its helper has not begun.
  void run(int64_t count, Part part, void *state);

  /// The scratch memory of a part. The caller of `run` reserves it before.
  Workspace &getWorkspace(int64_t index) { return workspaces[index]; }

private:
  struct Helper {
    std::thread thread;
    Signal given;
    Part part = nullptr;
    void *state = nullptr;
    int64_t count = 0;
    /// True if a thread has begun the part. The exchange that takes the part acquires what `give`
    /// released: the part's function, state and count.
    std::atomic<bool> isTaken{true};
  };
  void work(Helper &helper, int64_t index);
  /// Hands a part to a helper.
  static void give(Helper &helper, Part part, void *state, int64_t count);
  /// Takes a helper's part. Returns true if the calling thread is to do it.
  static bool take(Helper &helper);
  void stop();

  std::vector<std::unique_ptr<Helper>> helpers;
  std::vector<Workspace> workspaces;
  /// How long helpers poll before they sleep, in nanoseconds. Relaxed order is enough: a helper
  /// that reads an old value polls for another time.
  std::atomic<int64_t> spin{0};
  /// Parts that are not done, the caller's excepted. `run` stores it before `give` releases the
  /// parts, so the store itself may be relaxed. Each decrement releases the part's results, which
  /// the caller acquires when it reads 0.
  std::atomic<int64_t> unfinished{0};
  Signal finished;
};

/// Names the calling thread in debuggers and profilers.
void nameThread(const std::string &name);

/// Requests the shortest time slice for the calling thread, so that it runs as soon as it wakes
/// up. A thread that communicates would otherwise wait for milliseconds, until the time slice of a
/// thread that computes is over. Its share of the processor does not grow. Has no effect on systems
/// without time slices per thread (Linux before 6.12).
void wakePromptly();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H

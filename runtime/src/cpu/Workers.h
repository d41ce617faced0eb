//===- Workers.h - the threads of a rank ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H

#include "Signal.h"

#include "meshwright/runtime/include/Memory.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace meshwright::rt {

/// Memory that grows and is kept.
class Workspace {
public:
  /// At least `bytes`; what was there is lost. Throws std::bad_alloc.
  void *get(int64_t bytes);

private:
  Memory memory;
  int64_t capacity = 0;
};

/// The threads that a rank computes with: the calling one and its helpers,
/// which are kept from run to run.
class Workers {
public:
  /// Does part `index` of `count` parts.
  using Part = void (*)(void *state, int64_t index, int64_t count);

  /// `count` threads with the caller's; throws std::system_error where there are no more.
  Workers(int64_t rank, int64_t count);
  ~Workers();

  int64_t getCount() const { return int64_t(helpers.size()) + 1; }
  void setSpin(int64_t nanoseconds) { spin = nanoseconds; }

  /// Does parts 0 to `count` - 1, as many as threads at most, at once; the caller
  /// does the first, and then those that no other thread has begun: it may have
  /// more to do than this. Returns when all are done.
  void run(int64_t count, Part part, void *state);

  /// What a part works in; reserved by the caller before `run`.
  Workspace &getWorkspace(int64_t index) { return workspaces[index]; }

private:
  struct Helper {
    std::thread thread;
    Signal given;
    Part part = nullptr;
    void *state = nullptr;
    int64_t count = 0;
    /// Whether somebody does the part.
    std::atomic<bool> isTaken{true};
  };
  void work(Helper &helper, int64_t index);
  static void give(Helper &helper, Part part, void *state, int64_t count);
  /// Whether the part is the caller's to do.
  static bool take(Helper &helper);
  void stop();

  std::vector<std::unique_ptr<Helper>> helpers;
  std::vector<Workspace> workspaces;
  std::atomic<int64_t> spin{0};
  std::atomic<int64_t> unfinished{0};
  Signal finished;
};

/// Names the calling thread in debuggers and profilers.
void nameThread(const std::string &name);

/// Has the calling thread run as soon as it wakes up, for a short while each
/// time: what communicates is wanted back on the links at once, and would else
/// wait until the scheduler's time slice of the thread that computes is over, which is
/// milliseconds. It gets no larger share of the processor. Systems that know no
/// time slices of threads (Linux before 6.12) leave things as they are.
void wakePromptly();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_WORKERS_H

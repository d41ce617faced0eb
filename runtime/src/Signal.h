//===- Signal.h - waiting for another thread --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SIGNAL_H
#define MESHWRIGHT_RUNTIME_SRC_SIGNAL_H

#include <atomic>
#include <chrono>
#include <cstdint>

namespace meshwright::rt {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// `seconds` from now; at most some decades, so that nothing overflows.
Time deadlineIn(double seconds);

/// A counter that threads wait on. A waiter looks at it for a while before it
/// sleeps: what another core does within microseconds costs no system call, on
/// either side. How long is learnt: where it did not help, the next looks are
/// shorter (the other core may be busy with another process).
class Signal {
public:
  uint32_t get() const { return word.load(std::memory_order_acquire); }

  /// Counts up and wakes all who wait.
  void raise() {
    word.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0)
      wake();
  }

  /// Returns once the counter is no longer `seen`; false where that takes until
  /// the deadline. Looks for up to `spinNanoseconds` before it sleeps.
  bool wait(uint32_t seen, int64_t spinNanoseconds, Time deadline = Time::max());

private:
  void wake();

  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> sleepers{0};
  /// How long to look, in nanoseconds.
  std::atomic<int64_t> patience{INT64_MAX};
};

/// How long threads look before they sleep: not at all where there are more of
/// them than cores, since they would keep those they wait for from running.
struct SpinTimes {
  /// Threads that compute: ranks and their workers.
  int64_t compute = 0;
  /// Where communication streams have threads of their own.
  int64_t streams = 0;
};

/// Cores that this process may use.
int64_t availableCores();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SIGNAL_H

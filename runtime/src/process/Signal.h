//===- Signal.h - a counter that threads wait on ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_PROCESS_SIGNAL_H
#define MESHWRIGHT_RUNTIME_SRC_PROCESS_SIGNAL_H

#include <atomic>
#include <chrono>
#include <cstdint>

namespace meshwright::rt {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// Returns the time `seconds` from now, at most some decades, so that it does not overflow.
Time deadlineIn(double seconds);

/// A counter that threads wait on.
///
/// - A waiter polls the counter before it sleeps. If another core raises the counter within
///   microseconds, neither side makes a system call.
/// - The time for which waiters poll adapts: it is halved when polling did not help (the other
///   core may be busy with another process) and doubled when it did.
/// - No raise is lost. `raise` increments `word` and then reads `sleepers`; `wait` increments
///   `sleepers` and then reads `word`. These four accesses are sequentially consistent, so at least
///   one side sees the other: either `raise` wakes the sleeper, or `wait` does not sleep.
class Signal {
public:
  uint32_t get() const { return word.load(std::memory_order_acquire); }

  /// Increments the counter and wakes all waiters. Writes before `raise` are visible after the
  /// `wait` that sees it.
  void raise() {
    word.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0)
      wake();
  }

  /// Waits until the counter differs from `seen`. Returns false if the deadline passes first.
  /// Polls for up to `spinNanoseconds` before it sleeps.
  bool wait(uint32_t seen, int64_t spinNanoseconds, Time deadline = Time::max());

private:
  void wake();

  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> sleepers{0};
  /// How long waiters poll, in nanoseconds. Relaxed order is enough: the value is a hint that
  /// only affects how long a waiter polls.
  std::atomic<int64_t> pollTime{INT64_MAX};
};

/// The number of cores that this process may use.
int64_t availableCores();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_PROCESS_SIGNAL_H

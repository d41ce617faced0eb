//===- Signal.cpp - a counter that threads wait on ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Signal.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <linux/futex.h>
#include <sched.h>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace meshwright::rt {

static_assert(sizeof(std::atomic<uint32_t>) == 4, "the kernel waits on the bare word");

Time deadlineIn(double seconds) {
  constexpr double most = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, most)));
}

static void pause() {
#ifdef __x86_64__
  _mm_pause();
#endif
}

bool Signal::wait(uint32_t seen, int64_t spinNanoseconds, Time deadline) {
  if (word.load(std::memory_order_acquire) != seen)
    return true;
  if (spinNanoseconds > 0) {
    constexpr int64_t least = 2'000;
    int64_t limit = std::min(pollTime.load(std::memory_order_relaxed), spinNanoseconds);
    Time end = Clock::now() + std::chrono::nanoseconds(limit);
    do {
      for (int i = 0; i < 32; ++i) {
        if (word.load(std::memory_order_acquire) != seen) {
          pollTime.store(std::min(2 * limit, spinNanoseconds), std::memory_order_relaxed);
          return true;
        }
        pause();
      }
    } while (Clock::now() < end);
    pollTime.store(std::max(limit / 2, least), std::memory_order_relaxed);
  }
  // Either the raising thread sees this sleeper, or the kernel sees the new count and does not
  // sleep.
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  bool inTime = true;
  while (word.load(std::memory_order_seq_cst) == seen) {
    timespec limit, *left = nullptr;
    if (deadline != Time::max()) {
      auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
      if (rest.count() <= 0) {
        inTime = false;
        break;
      }
      limit.tv_sec = rest.count() / 1000000000;
      limit.tv_nsec = rest.count() % 1000000000;
      left = &limit;
    }
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, left, nullptr, 0);
  }
  // Relaxed: a raising thread that sees the old number makes one system call too many.
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return inTime;
}

void Signal::wake() { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

int64_t availableCores() {
  cpu_set_t set;
  int64_t cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  // A container's share of time: "quota period", or "max period".
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0)
    cores = std::min<int64_t>(cores, std::max(1.0, std::ceil(std::stod(quota) / period)));
  return std::max<int64_t>(cores, 1);
}

} // namespace meshwright::rt

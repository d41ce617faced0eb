//===- Interrupts.cpp - calls that end before they are done ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Interrupts.h"

#include "Signal.h"

#include <atomic>
#include <pthread.h>
#include <thread>

namespace meshwright::rt {

static std::atomic<bool (*)()> interruptCheck{nullptr};
static std::atomic<bool> isEnding{false};
static std::atomic<int> activeRanks{0};

void setInterruptCheck(bool (*check)()) {
  interruptCheck = check;
  // A forked process has none of the ranks' threads.
  static const int isSet = pthread_atfork(nullptr, nullptr, [] { activeRanks = 0; });
  (void)isSet;
}

bool isInterrupted() {
  bool (*check)() = interruptCheck.load();
  return isEnding || (check && check());
}

bool areRunsEnding() { return isEnding; }

void countActiveRanks(int change) { activeRanks += change; }

bool endRuns(double seconds) {
  isEnding = true;
  Time deadline = deadlineIn(seconds);
  while (activeRanks > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return activeRanks == 0;
}

} // namespace meshwright::rt

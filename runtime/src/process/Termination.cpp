//===- Termination.cpp - SIGTERM during a run -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Termination.h"

#include "meshwright/runtime/include/WholeFile.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <unistd.h>

namespace meshwright::rt {

static std::atomic<int> activeRuns{0};
static std::atomic<bool> terminated{false};
static int signalWakeUp = -1;
static struct sigaction previousTermination = {};

void setActiveRuns(int count) { activeRuns = count; }
bool isTerminated() { return terminated; }

void terminate() {
  sigaction(SIGTERM, &previousTermination, nullptr);
  kill(getpid(), SIGTERM);
}

static void handleTermination(int) {
  if (activeRuns.load() == 0)
    return terminate();
  int saved = errno;
  terminated.store(true);
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(signalWakeUp, &one, sizeof(one));
  errno = saved;
}

void watchForTermination(int wakeUp) {
  signalWakeUp = wakeUp;
  struct sigaction &current = previousTermination;
  if (sigaction(SIGTERM, nullptr, &current) != 0 ||
      (current.sa_handler != SIG_DFL && !Temporary::isRemoval(current)))
    return;
  struct sigaction ours = {};
  ours.sa_handler = handleTermination;
  sigemptyset(&ours.sa_mask);
  ours.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &ours, nullptr);
}

} // namespace meshwright::rt

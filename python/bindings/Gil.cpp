//===- Gil.cpp - calls that wait without Python's lock --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Gil.h"

#include "meshwright/Compiler.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>

namespace nb = nanobind;

namespace meshwright {

/// How long the end of the interpreter waits for ranks that are in the middle of a kernel.
static constexpr double kEndSeconds = 5;

/// Threads that are in a call. One that waits for the lock is not.
static std::atomic<int> callers{0};
/// Python runs handlers of signals on this thread only.
static pthread_t mainThread;

ReleasedGil::ReleasedGil() {
  ++callers;
  state = PyEval_SaveThread();
}

ReleasedGil::~ReleasedGil() {
  --callers;
  try {
    PyEval_RestoreThread(state);
  } catch (...) {
    // The interpreter has ended. Leaving this block would go on unwinding.
    while (true)
      pause();
  }
}

static bool checkSignals() {
  if (!pthread_equal(pthread_self(), mainThread))
    return false;
  PyGILState_STATE held = PyGILState_Ensure();
  // An exception stays with the thread until the call returns.
  bool isOver = PyErr_Occurred() || PyErr_CheckSignals() != 0;
  PyGILState_Release(held);
  return isOver;
}

/// Behind the end of the interpreter: static objects are about to be destroyed. A thread that is still
/// at work would use them.
static void leaveWorkers(int status, void *) {
  if (callers == 0 && endRuns(/*seconds=*/0))
    return;
  std::fflush(nullptr);
  _exit(status);
}

void handleSignals(nb::module_ &module) {
  nb::object thread = nb::module_::import_("threading").attr("main_thread")();
  mainThread = pthread_t(nb::cast<uintptr_t>(thread.attr("ident")));
  setInterruptCheck(checkSignals);
  on_exit(leaveWorkers, nullptr);
  // A forked process has none of the other threads.
  pthread_atfork(nullptr, nullptr, [] {
    callers = 0;
    mainThread = pthread_self();
  });
  module.def("keep", [](nb::handle object) { object.inc_ref(); });
  module.def("end_runs", [] {
    ReleasedGil released;
    return endRuns(kEndSeconds);
  });
}

} // namespace meshwright

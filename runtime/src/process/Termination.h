//===- Termination.h - SIGTERM during a run ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_PROCESS_TERMINATION_H
#define MESHWRIGHT_RUNTIME_SRC_PROCESS_TERMINATION_H

namespace meshwright::rt {

// When a process has died, mpirun sends SIGTERM to the others and kills them a second later.
// During a run this process uses that second to report which process has died. Outside a run
// SIGTERM ends it at once.

/// Installs a handler of SIGTERM, unless the program has one of its own. During a run the
/// handler writes to the eventfd `wakeUp`, for the thread that reports the failure.
void watchForTermination(int wakeUp);
/// Sets the number of active runs of this process. The handler acts on it.
void setActiveRuns(int count);
/// Returns true once SIGTERM has come during a run.
bool isTerminated();
/// Restores the previous action of SIGTERM, and sends the signal to this process.
void terminate();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_PROCESS_TERMINATION_H

//===- Termination.h - SIGTERM during a run ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_BACKENDS_MPI_TERMINATION_H
#define MESHWRIGHT_RUNTIME_BACKENDS_MPI_TERMINATION_H

namespace meshwright::rt::mpi {

// When a process has died, mpirun sends SIGTERM to the others and kills them a second later.
// During a run this process uses that second to say which process has died. Outside a run
// the signal does what it did before.

/// Handles SIGTERM from now on, unless the program handles it itself. A signal during a run
/// writes to `wakeUp`, an eventfd.
void watchForTermination(int wakeUp);
/// How many runs of this process are active.
void setActiveRuns(int count);
/// Returns true once a signal has come during a run.
bool isTerminated();
/// Ends this process as the signal would have without us.
void terminate();

} // namespace meshwright::rt::mpi

#endif // MESHWRIGHT_RUNTIME_BACKENDS_MPI_TERMINATION_H

//===- Interrupts.h - calls that end before they are done -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program that calls the runtime may want to end a call: Python, when SIGINT has come. The thread
// of the call asks from time to time while it waits for ranks or for other processes. The call then
// fails as if a rank had, so the state is as before.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_INTERRUPTS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_INTERRUPTS_H

namespace meshwright::rt {

/// The error of a call that was ended.
inline constexpr const char *kInterrupted = "the call was interrupted";

/// Sets the function that is asked; null, the default, for none. It returns true if the call of this
/// thread is to end. Any thread of a call may ask it, and holds no lock of the runtime then.
void setInterruptCheck(bool (*check)());
/// Returns true if the call of this thread is to end.
bool isInterrupted();

/// Ends all runs and refuses new ones, because the process ends. Waits for ranks that are in the
/// middle of their work, for at most so many seconds. Returns false if some still are.
bool endRuns(double seconds);

/// Returns true if no run may begin.
bool areRunsEnding();

/// Counts ranks that are at work, for `endRuns`.
void countActiveRanks(int change);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_INTERRUPTS_H

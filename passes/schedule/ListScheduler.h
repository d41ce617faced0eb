//===- ListScheduler.h - an order for work and communication ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What one rank does, as a graph of tasks with times: kernels, one after the
// other, and collectives, in order on their streams. The scheduler plays it
// through and says in which order to begin what. It knows no IR, so that a
// program can be judged before it is written.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H
#define MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <vector>

namespace meshwright {

/// Stream 0 computes; collectives of streams 1 and up run beside it.
struct ScheduleTask {
  int stream = 0;
  /// Picoseconds.
  int64_t time = 0;
  /// Earlier tasks whose results it reads.
  llvm::SmallVector<unsigned, 4> dependences;
  /// Bytes of memory that its results take.
  int64_t bytes = 0;
};

struct Schedule {
  /// In which order tasks begin.
  std::vector<unsigned> order;
  /// Picoseconds to the end of the last task.
  int64_t time = 0;
  /// Picoseconds in which stream 0 had nothing to do: communication that shows.
  int64_t exposed = 0;
  /// Picoseconds of all collectives.
  int64_t communication = 0;
  /// The most bytes that results took at once.
  int64_t peak = 0;
};

/// Plays the tasks, which are in an order that keeps their dependences. A
/// collective begins as soon as its operands are there. Of the kernels that
/// could run, the one goes first from which a collective follows soonest: what
/// keeps the links busy hides most; then the one with the longest way to the
/// end; then the first. One that is many collectives ahead waits. A collective
/// that passes on what another one brought begins behind those before it that
/// read what that one passed on: values that go around a ring take two places.
///
/// How many that is, and whether a collective that continues a chain overtakes
/// others, depends on the program: each is tried, with the times that are given
/// and with collectives that take twice as long, and the order with the least
/// sum of both times is returned. So a program does not wait where it need not
/// when a collective comes late.
///
/// With `memory`, a task that would take more than those bytes waits as long as
/// another one can run; a `peak` above tells that none could. Results are kept
/// from their task's begin to the end of their last reader; of a collective, to
/// the begin of the first task that reads what it brings.
///
/// The same tasks give the same order, in n log n time. The figures are for the
/// times that are given.
Schedule scheduleTasks(llvm::ArrayRef<ScheduleTask> tasks, int64_t memory = 0);

/// The same figures for the tasks as they stand.
Schedule simulateInOrder(llvm::ArrayRef<ScheduleTask> tasks);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H

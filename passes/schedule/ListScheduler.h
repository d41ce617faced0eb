//===- ListScheduler.h - an order for work and communication ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The work of one rank as a graph of tasks with times: kernels, one after the other,
// and collectives, one after the other on each link. The scheduler simulates the rank
// and returns an order of the tasks. It knows no IR, so a pass can compare programs
// before it writes them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H
#define MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <vector>

namespace meshwright {

/// A kernel (link 0: the compute stream), or a collective that runs beside it. Collectives of
/// one link take turns, also those of different streams.
struct ScheduleTask {
  int link = 0;
  /// Picoseconds.
  int64_t time = 0;
  /// Earlier tasks that have to end before the task begins.
  llvm::SmallVector<unsigned, 4> dependences;
  /// Bytes of memory that the task's results take.
  int64_t bytes = 0;
  /// The dependences whose results the task does not read.
  llvm::SmallVector<unsigned, 1> unread = {};
  /// A collective has this if it is waited for when it has ended, and not only before its first
  /// reader. Its operands are free then.
  bool frees = false;
  /// A collective that only waits for its time has this: of several that could begin, the first to be
  /// read begins first.
  bool inTurn = false;
  /// A kernel has this if its results take next to no memory, and only such kernels read them. The memory of its
  /// operands is free behind it: the update of a weight frees its gradient.
  bool drains = false;

  bool reads(unsigned dependence) const { return !llvm::is_contained(unread, dependence); }
};

struct Schedule {
  /// The tasks in the order in which they begin.
  std::vector<unsigned> order;
  /// Collectives that free their operands, and the task before which each of them is waited for.
  std::vector<std::pair<unsigned, unsigned>> waits;
  /// Picoseconds to the end of the last task.
  int64_t time = 0;
  /// Picoseconds in which the compute stream is idle: communication that is not hidden.
  int64_t exposed = 0;
  /// The part of it in which the compute stream waits for each task. Of `simulateInOrder` alone.
  std::vector<int64_t> shown;
  /// Picoseconds at which each task ends.
  std::vector<int64_t> finish;
  /// Picoseconds of all collectives.
  int64_t communication = 0;
  /// The largest sum of bytes that results take at one time.
  int64_t peak = 0;
};

/// So many times its time a collective may take before a kernel waits for it only to free its operands:
/// where memory is short, and where it is not.
constexpr int64_t kTightSlack = 2, kLooseSlack = 8;

/// Orders the tasks, which come in an order that keeps their dependences.
///
/// Outline:
///  1. `TaskGraph` derives the data that the order depends on: users, the time to the
///     end of the program and to the next collective, stages, and holds.
///  2. `scheduleGraph` is a list scheduler: it simulates the rank and begins, whenever the
///     compute stream is free, the ready task that comes first by these rules:
///     - a collective before any kernel;
///     - a kernel that drains (`ScheduleTask::drains`) behind any other, but before a task that
///       would raise the peak of memory;
///     - then the kernel that is fewest stages ahead of the others (`Rules::ahead`);
///     - then, with `Rules::inTurn`, the kernel that leads to the earliest collective;
///     - then the kernel from which a collective follows soonest, because busy links
///       hide most; then the one with the longest way to the end; then the first.
///  3. The best rules depend on the program. `scheduleTasks` tries all combinations of
///     `Rules`, with the given times and with collectives that take twice as long. It
///     returns the order with the least sum of both times, so that a collective that
///     comes late costs little.
///
/// A collective that forwards the result of another collective around a ring begins
/// after the kernels that read the chunk before it, so that a ring takes two buffers.
///
/// With `memory`, a task that would exceed this number of bytes waits as long as another
/// task can run. `peak` exceeds `memory` only if none could. A result is alive from its
/// task's begin to the end of its last reader; the operands of a collective, to the begin
/// of the first task that reads its results.
///
/// A collective that frees its operands, the scatter of a gradient, is waited for where it has ended,
/// even if it takes `slack` times its time. With more slack, a rank that comes late delays the others less,
/// and more gradients are alive.
///
/// The same tasks give the same order. The figures are for the given times. Complexity:
/// n log n for n tasks and bounded dependences, times the 32 combinations, or four
/// of them for more than 20,000 tasks. Where no task fits into `memory`, n times the number of ready tasks.
Schedule scheduleTasks(llvm::ArrayRef<ScheduleTask> tasks, int64_t memory = 0,
                       int64_t slack = kTightSlack);

/// The same figures for the given order.
Schedule simulateInOrder(llvm::ArrayRef<ScheduleTask> tasks);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_LISTSCHEDULER_H

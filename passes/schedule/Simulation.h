//===- Simulation.h - a rank that runs tasks --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The time that tasks take and the memory that their results take, for an order that is found while they
// begin.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_SIMULATION_H
#define MESHWRIGHT_PASSES_SCHEDULE_SIMULATION_H

#include "meshwright/passes/schedule/ListScheduler.h"

#include <algorithm>

namespace meshwright {

/// Simulates a rank: the time and the memory in use while tasks begin one after the other.
class Simulation {
public:
  /// A collective that frees its operands is waited for where it has ended, even if it takes `slack` times
  /// its time.
  explicit Simulation(llvm::ArrayRef<ScheduleTask> tasks, int64_t slack = kTightSlack)
      : tasks(tasks), slack(slack), finish(tasks.size(), 0), readers(tasks.size(), 0),
        waited(tasks.size(), false) {
    for (const ScheduleTask &task : tasks)
      for (unsigned dependence : task.dependences)
        readers[dependence] += task.reads(dependence);
  }

  /// The time at which all operands of the task are there. Its dependences have begun.
  int64_t getReadyTime(unsigned i) const {
    int64_t time = 0;
    for (unsigned dependence : tasks[i].dependences)
      time = std::max(time, finish[dependence]);
    return time;
  }

  /// The time at which a link has finished its tasks.
  int64_t getFreeTime(int link) const { return size_t(link) < free.size() ? free[link] : 0; }

  /// Waits until all operands of the task are there. The last of them shows.
  void waitFor(unsigned i) {
    result.shown.resize(tasks.size());
    int64_t time = getReadyTime(i);
    for (unsigned dependence : tasks[i].dependences)
      if (finish[dependence] == time && time > now) {
        result.shown[dependence] += time - now;
        waitUntil(time);
      }
  }

  void waitUntil(int64_t time) {
    if (time <= now)
      return;
    result.exposed += time - now;
    now = time;
  }

  void begin(unsigned i) {
    const ScheduleTask &task = tasks[i];
    for (unsigned dependence : task.dependences)
      wait(dependence);
    if (task.link == 0)
      freeEnded(i);
    if (task.link == 0) {
      finish[i] = now += task.time;
    } else {
      if (free.size() <= size_t(task.link))
        free.resize(task.link + 1, 0);
      finish[i] = free[task.link] = std::max(now, free[task.link]) + task.time;
      result.communication += task.time;
      if (task.frees)
        freeing.push_back(i);
    }
    live += task.bytes;
    result.peak = std::max(result.peak, live);
    if (task.link == 0)
      release(i);
    result.order.push_back(i);
  }

  /// Bytes that are freed before the task begins, by collectives that it waits for; and
  /// bytes that are free when it has ended.
  int64_t getFreedBefore(unsigned i) const {
    int64_t bytes = 0;
    for (unsigned dependence : tasks[i].dependences)
      if (tasks[dependence].link && !waited[dependence])
        bytes += getLastRead(dependence);
    return bytes;
  }
  int64_t getFreed(unsigned i) const { return getFreedBefore(i) + getLastRead(i); }
  /// Bytes that are alive while the task runs, if it begins next.
  int64_t getLiveWith(unsigned i) const { return live - getFreedBefore(i) + tasks[i].bytes; }
  int64_t getLive() const { return live; }
  int64_t getPeak() const { return result.peak; }
  /// Bytes of the results whose last reader is the task.
  int64_t getLastRead(unsigned i) const {
    int64_t bytes = 0;
    for (unsigned dependence : tasks[i].dependences)
      if (tasks[i].reads(dependence) && readers[dependence] == 1)
        bytes += tasks[dependence].bytes;
    return bytes;
  }
  /// Waits for a collective before a kernel, and frees its operands.
  void waitBefore(unsigned kernel, unsigned i) {
    if (waited[i])
      return;
    if (finish[i] > now) {
      result.shown.resize(tasks.size());
      result.shown[i] += finish[i] - now;
    }
    waitUntil(finish[i]);
    wait(i);
    result.waits.emplace_back(i, kernel);
  }

  Schedule end() {
    int64_t last = now;
    for (int64_t time : free)
      last = std::max(last, time);
    for (size_t i = result.shown.size(); i-- > 0;)
      if (finish[i] == last && last > now) {
        result.shown[i] += last - now;
        break;
      }
    waitUntil(last);
    result.time = now;
    result.finish = std::move(finish);
    return std::move(result);
  }

  int64_t now = 0;

private:
  int64_t live = 0;
  /// Waits before a kernel for the collectives that have ended, even if they are late.
  void freeEnded(unsigned kernel) {
    llvm::erase_if(freeing, [&](unsigned i) {
      if (waited[i])
        return true;
      if (finish[i] + (slack - 1) * tasks[i].time > now)
        return false;
      wait(i);
      result.waits.emplace_back(i, kernel);
      return true;
    });
  }
  /// A collective's operands stay alive until a task waits for the collective.
  void wait(unsigned i) {
    if (tasks[i].link == 0 || waited[i])
      return;
    waited[i] = true;
    release(i);
  }
  void release(unsigned i) {
    for (unsigned dependence : tasks[i].dependences)
      if (tasks[i].reads(dependence) && --readers[dependence] == 0)
        live -= tasks[dependence].bytes;
  }

  llvm::ArrayRef<ScheduleTask> tasks;
  int64_t slack;
  std::vector<int64_t> finish;
  std::vector<unsigned> readers;
  std::vector<bool> waited;
  /// Collectives in flight that free their operands when they have ended.
  llvm::SmallVector<unsigned, 4> freeing;
  llvm::SmallVector<int64_t, 4> free;
  Schedule result;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_SIMULATION_H

//===- ListScheduler.cpp - an order for work and communication ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ListScheduler.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>

using namespace meshwright;
using llvm::ArrayRef;

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

/// Time and memory as tasks begin one after the other.
class Player {
public:
  explicit Player(ArrayRef<ScheduleTask> tasks)
      : tasks(tasks), finish(tasks.size(), 0), readers(tasks.size(), 0),
        waited(tasks.size(), false) {
    for (const ScheduleTask &task : tasks)
      for (unsigned dependence : task.dependences)
        ++readers[dependence];
  }

  /// When all that the task reads is there; its dependences have begun.
  int64_t getReadyTime(unsigned i) const {
    int64_t time = 0;
    for (unsigned dependence : tasks[i].dependences)
      time = std::max(time, finish[dependence]);
    return time;
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
    if (task.stream == 0) {
      finish[i] = now += task.time;
    } else {
      if (free.size() <= size_t(task.stream))
        free.resize(task.stream + 1, 0);
      finish[i] = free[task.stream] = std::max(now, free[task.stream]) + task.time;
      result.communication += task.time;
    }
    live += task.bytes;
    result.peak = std::max(result.peak, live);
    if (task.stream == 0)
      release(i);
    result.order.push_back(i);
  }

  /// Bytes that what the task waits for gives free before it begins, and bytes
  /// that are free once it is done.
  int64_t getFreedBefore(unsigned i) const {
    int64_t bytes = 0;
    for (unsigned dependence : tasks[i].dependences)
      if (tasks[dependence].stream && !waited[dependence])
        bytes += getLastRead(dependence);
    return bytes;
  }
  int64_t getFreed(unsigned i) const { return getFreedBefore(i) + getLastRead(i); }

  Schedule end() {
    int64_t last = now;
    for (int64_t time : free)
      last = std::max(last, time);
    waitUntil(last);
    result.time = now;
    return std::move(result);
  }

  int64_t now = 0;
  int64_t live = 0;

private:
  /// A collective's operands stay until somebody waits for it.
  void wait(unsigned i) {
    if (tasks[i].stream == 0 || waited[i])
      return;
    waited[i] = true;
    release(i);
  }
  void release(unsigned i) {
    for (unsigned dependence : tasks[i].dependences)
      if (--readers[dependence] == 0)
        live -= tasks[dependence].bytes;
  }
  /// Bytes of which the task is the last reader.
  int64_t getLastRead(unsigned i) const {
    int64_t bytes = 0;
    for (unsigned dependence : tasks[i].dependences)
      if (readers[dependence] == 1)
        bytes += tasks[dependence].bytes;
    return bytes;
  }

  ArrayRef<ScheduleTask> tasks;
  std::vector<int64_t> finish;
  std::vector<unsigned> readers;
  std::vector<bool> waited;
  llvm::SmallVector<int64_t, 4> free;
  Schedule result;
};

} // namespace

Schedule meshwright::playInOrder(ArrayRef<ScheduleTask> tasks) {
  Player player(tasks);
  for (unsigned i = 0; i < tasks.size(); ++i) {
    player.waitUntil(player.getReadyTime(i));
    player.begin(i);
  }
  return player.end();
}

Schedule meshwright::scheduleTasks(ArrayRef<ScheduleTask> tasks, int64_t memory) {
  size_t count = tasks.size();
  std::vector<llvm::SmallVector<unsigned, 4>> users(count);
  std::vector<unsigned> missing(count);
  for (unsigned i = 0; i < count; ++i) {
    missing[i] = tasks[i].dependences.size();
    for (unsigned dependence : tasks[i].dependences)
      users[dependence].push_back(i);
  }
  // To the end of the program, and to the next collective, counted from the
  // begin of the task.
  std::vector<int64_t> remaining(count), distance(count);
  for (size_t i = count; i-- > 0;) {
    int64_t after = 0, next = kNever;
    for (unsigned user : users[i]) {
      after = std::max(after, remaining[user]);
      next = std::min(next, tasks[user].stream ? 0 : distance[user]);
    }
    remaining[i] = tasks[i].time + after;
    distance[i] = std::min(kNever, tasks[i].time + next);
  }

  // Chains of chunks that nothing holds together stay side by side: one that
  // has got ahead by many collectives waits for the others, and chunks of about
  // one size count as equal.
  constexpr unsigned kAhead = 8;
  std::vector<unsigned> stage(count);
  for (unsigned i = 0; i < count; ++i) {
    for (unsigned dependence : tasks[i].dependences)
      stage[i] = std::max(stage[i], stage[dependence] + (tasks[dependence].stream != 0));
    int64_t unit = 1;
    while (distance[i] / unit >= 16)
      unit *= 2;
    distance[i] -= distance[i] % unit;
  }

  auto isBefore = [&](unsigned a, unsigned b) {
    return std::tuple(tasks[a].stream == 0, stage[a] / kAhead, distance[a], -remaining[a], a) <
           std::tuple(tasks[b].stream == 0, stage[b] / kAhead, distance[b], -remaining[b], b);
  };
  std::set<unsigned, decltype(isBefore)> ready(isBefore);
  // What can begin at a later time.
  using Entry = std::pair<int64_t, unsigned>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> later;

  Player player(tasks);
  auto add = [&](unsigned i) { later.push({player.getReadyTime(i), i}); };
  for (unsigned i = 0; i < count; ++i)
    if (missing[i] == 0)
      add(i);
  while (!ready.empty() || !later.empty()) {
    while (!later.empty() && later.top().first <= player.now) {
      ready.insert(later.top().second);
      later.pop();
    }
    if (ready.empty()) {
      player.waitUntil(later.top().first);
      continue;
    }
    auto chosen = ready.begin();
    if (memory) {
      auto fits = [&](unsigned i) {
        return player.live - player.getFreedBefore(i) + tasks[i].bytes <= memory;
      };
      chosen = std::find_if(ready.begin(), ready.end(), fits);
      if (chosen == ready.end()) {
        // What is ready later may take less than what is ready now.
        if (!later.empty()) {
          player.waitUntil(later.top().first);
          continue;
        }
        chosen = std::min_element(ready.begin(), ready.end(), [&](unsigned a, unsigned b) {
          return tasks[a].bytes - player.getFreed(a) < tasks[b].bytes - player.getFreed(b);
        });
      }
    }
    unsigned i = *chosen;
    ready.erase(chosen);
    player.begin(i);
    for (unsigned user : users[i])
      if (--missing[user] == 0)
        add(user);
  }
  return player.end();
}

//===- AheadScheduler.cpp - collectives ahead of a given order ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/AheadScheduler.h"

#include "meshwright/passes/schedule/Simulation.h"

#include "llvm/ADT/SmallSet.h"

#include <set>

using namespace meshwright;
using llvm::ArrayRef;

namespace {

class AheadScheduler {
public:
  AheadScheduler(ArrayRef<ScheduleTask> tasks, ArrayRef<unsigned> order, int64_t memory);
  Schedule run();

private:
  bool hasRoom(size_t begin, size_t end, int64_t bytes) const;
  void beginAhead(size_t place);
  void begin(unsigned task, size_t place);
  void holdOperands(unsigned task, size_t place, int64_t bytes);

  /// A collective is waited for where it has ended, even if it takes so many times its time.
  static constexpr int64_t kSlack = 2;

  ArrayRef<ScheduleTask> given;
  /// The same tasks. No collective is waited for by the simulation alone.
  std::vector<ScheduleTask> tasks;
  ArrayRef<unsigned> order;
  int64_t memory;
  Simulation simulation;
  std::vector<size_t> placeOf, firstReader;
  std::vector<llvm::SmallVector<unsigned, 4>> users;
  std::vector<unsigned> missing;
  std::vector<bool> begun;
  /// The places of collectives whose dependences have begun.
  std::set<size_t> ready;
  /// Live bytes at each place, with what is planned so far.
  std::vector<int64_t> live;
  /// The collectives that are waited for before each place.
  std::vector<llvm::SmallVector<unsigned, 1>> waits;
};

} // namespace

static std::vector<ScheduleTask> withoutFreeing(ArrayRef<ScheduleTask> tasks) {
  std::vector<ScheduleTask> own(tasks.begin(), tasks.end());
  for (ScheduleTask &task : own)
    task.frees = false;
  return own;
}

AheadScheduler::AheadScheduler(ArrayRef<ScheduleTask> given, ArrayRef<unsigned> order, int64_t memory)
    : given(given), tasks(withoutFreeing(given)), order(order), memory(memory), simulation(tasks),
      placeOf(order.size()), firstReader(order.size(), order.size()), users(order.size()),
      missing(order.size()), begun(order.size(), false), live(order.size()), waits(order.size()) {
  std::vector<ScheduleTask> blocking = tasks;
  for (ScheduleTask &task : blocking)
    task.link = 0;
  Simulation before(blocking);
  for (auto [place, i] : llvm::enumerate(order)) {
    placeOf[i] = place;
    live[place] = before.getLiveWith(i);
    before.begin(i);
  }
  for (unsigned i : order) {
    missing[i] = tasks[i].dependences.size();
    if (missing[i] == 0 && tasks[i].link)
      ready.insert(placeOf[i]);
    for (unsigned dependence : tasks[i].dependences) {
      users[dependence].push_back(i);
      if (tasks[i].reads(dependence))
        firstReader[dependence] = std::min(firstReader[dependence], placeOf[i]);
    }
  }
}

bool AheadScheduler::hasRoom(size_t begin, size_t end, int64_t bytes) const {
  // Places further away are fuller, most often.
  for (size_t place = end; place-- > begin;)
    if (live[place] + bytes > memory)
      return false;
  return true;
}

/// Begins collectives of later places that may run beside the kernel at this one.
void AheadScheduler::beginAhead(size_t place) {
  int64_t end = simulation.now + tasks[order[place]].time;
  // Of one link, none overtakes one that waits for memory.
  llvm::SmallSet<int, 4> full;
  llvm::SmallVector<size_t> candidates(ready.begin(), ready.end());
  for (size_t later : candidates) {
    unsigned i = order[later];
    if (full.contains(tasks[i].link) || simulation.getFreeTime(tasks[i].link) >= end ||
        simulation.getReadyTime(i) > simulation.now)
      continue;
    if (!hasRoom(place, later, tasks[i].bytes)) {
      full.insert(tasks[i].link);
      continue;
    }
    for (size_t between = place; between < later; ++between)
      live[between] += tasks[i].bytes;
    begin(i, place);
  }
}

/// Keeps operands of a collective that has begun until it is waited for.
void AheadScheduler::holdOperands(unsigned task, size_t place, int64_t bytes) {
  int64_t time = simulation.now;
  int64_t end = simulation.getFreeTime(tasks[task].link) + (kSlack - 1) * tasks[task].time;
  for (size_t next = place; next < firstReader[task]; ++next) {
    unsigned other = order[next];
    bool isFull = given[task].frees && live[next] + bytes > memory && next > placeOf[task];
    if (tasks[other].link == 0 && (isFull || (given[task].frees && time >= end))) {
      waits[next].push_back(task);
      return;
    }
    if (next > placeOf[task])
      live[next] += bytes;
    time += tasks[other].link == 0 ? tasks[other].time : 0;
  }
}

void AheadScheduler::begin(unsigned task, size_t place) {
  ready.erase(placeOf[task]);
  begun[task] = true;
  int64_t bytes = tasks[task].link ? simulation.getLastRead(task) : 0;
  simulation.waitFor(task);
  simulation.begin(task);
  if (tasks[task].link)
    holdOperands(task, place, bytes);
  for (unsigned user : users[task])
    if (--missing[user] == 0 && tasks[user].link)
      ready.insert(placeOf[user]);
}

Schedule AheadScheduler::run() {
  for (auto [place, i] : llvm::enumerate(order)) {
    if (begun[i])
      continue;
    if (tasks[i].link == 0) {
      beginAhead(place);
      for (unsigned ended : waits[place])
        simulation.waitBefore(i, ended);
    }
    begin(i, place);
  }
  return simulation.end();
}

Schedule meshwright::scheduleAhead(ArrayRef<ScheduleTask> tasks, ArrayRef<unsigned> order, int64_t memory) {
  return AheadScheduler(tasks, order, memory).run();
}

//===- ListScheduler.cpp - an order for work and communication ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ListScheduler.h"

#include "meshwright/passes/schedule/Simulation.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <set>

using namespace meshwright;
using llvm::ArrayRef;

static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

static Schedule simulateInOrder(ArrayRef<ScheduleTask> tasks, ArrayRef<unsigned> order,
                                int64_t slack = kTightSlack) {
  Simulation simulation(tasks, slack);
  for (unsigned i : order) {
    simulation.waitFor(i);
    simulation.begin(i);
  }
  return simulation.end();
}

Schedule meshwright::simulateInOrder(ArrayRef<ScheduleTask> tasks) {
  std::vector<unsigned> order(tasks.size());
  std::iota(order.begin(), order.end(), 0);
  return ::simulateInOrder(tasks, order);
}

namespace {

/// Properties of the tasks that the order depends on.
struct TaskGraph {
  explicit TaskGraph(ArrayRef<ScheduleTask> tasks);

  ArrayRef<ScheduleTask> tasks;
  std::vector<llvm::SmallVector<unsigned, 4>> users;
  /// For each task, the collectives that must not begin before it; and for each
  /// collective, the number of such tasks.
  std::vector<llvm::SmallVector<unsigned, 1>> holds;
  std::vector<unsigned> held;
  /// Picoseconds from the begin of the task to the end of the program, and to the next
  /// collective. `distance` is rounded, so that chunks of about one size are equal.
  std::vector<int64_t> remaining, distance;
  /// The number of collectives on the longest path to the task, and the first collective
  /// that depends on it.
  std::vector<unsigned> stage, next;
  /// The first task that reads the result.
  std::vector<unsigned> reader;
};

} // namespace

TaskGraph::TaskGraph(ArrayRef<ScheduleTask> tasks) : tasks(tasks) {
  size_t count = tasks.size();
  users.resize(count);
  remaining.resize(count);
  distance.resize(count);
  stage.resize(count);
  next.resize(count);
  reader.resize(count, count);
  for (unsigned i = 0; i < count; ++i)
    for (unsigned dependence : tasks[i].dependences) {
      reader[dependence] = std::min(reader[dependence], i);
      users[dependence].push_back(i);
      stage[i] = std::max(stage[i], stage[dependence] + (tasks[dependence].link != 0));
    }
  // A collective that forwards the result of another one (around a ring) waits for the
  // readers of the chunk before. Otherwise the ring would need a third buffer.
  holds.resize(count);
  held.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    llvm::SmallDenseSet<unsigned, 4> waits;
    if (tasks[i].link)
      for (unsigned passed : tasks[i].dependences)
        if (tasks[passed].link)
          for (unsigned before : tasks[passed].dependences)
            for (unsigned reader : users[before])
              if (reader < i && !tasks[reader].link && waits.insert(reader).second)
                holds[reader].push_back(i);
    held[i] = waits.size();
  }
  for (size_t i = count; i-- > 0;) {
    int64_t after = 0, until = kNever;
    next[i] = count;
    for (unsigned user : users[i]) {
      after = std::max(after, remaining[user]);
      until = std::min(until, tasks[user].link ? 0 : distance[user]);
      next[i] = std::min(next[i], tasks[user].link ? user : next[user]);
    }
    remaining[i] = tasks[i].time + after;
    distance[i] = std::min(kNever, tasks[i].time + until);
  }
  for (int64_t &time : distance) {
    int64_t unit = 1;
    while (time / unit >= 16)
      unit *= 2;
    time -= time % unit;
  }
}

namespace {

/// Rules of one order. The best ones depend on the program.
struct Rules {
  /// Independent chains of chunks advance together: a chain that is `ahead` collectives
  /// further than others waits for them.
  unsigned ahead;
  /// The ready collective with the most collectives before it goes first.
  /// A collective that would only queue waits.
  bool finishesChains;
  /// All kernels that lead to one collective go before those that lead to the next.
  bool inTurn;
};

} // namespace

static Schedule scheduleGraph(const TaskGraph &graph, Rules rules, int64_t memory) {
  ArrayRef<ScheduleTask> tasks = graph.tasks;
  size_t count = tasks.size();
  std::vector<unsigned> missing(count);
  for (unsigned i = 0; i < count; ++i)
    missing[i] = tasks[i].dependences.size() + graph.held[i];
  auto isBefore = [&](unsigned a, unsigned b) {
    auto getKey = [&](unsigned i) {
      int64_t stage = graph.stage[i] / rules.ahead;
      if (rules.finishesChains && tasks[i].link)
        stage = -int64_t(graph.stage[i]);
      unsigned turn = rules.inTurn && !tasks[i].link ? graph.next[i] : 0;
      if (tasks[i].inTurn)
        turn = graph.reader[i];
      int rank = tasks[i].link ? 0 : tasks[i].drains ? 2 : 1;
      return std::tuple(rank, stage, turn, graph.distance[i], -graph.remaining[i], i);
    };
    return getKey(a) < getKey(b);
  };
  std::set<unsigned, decltype(isBefore)> ready(isBefore), draining(isBefore);
  // Tasks whose operands are there at a later time.
  using Entry = std::pair<int64_t, unsigned>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> later;

  Simulation simulation(tasks);
  auto add = [&](unsigned i) { later.push({simulation.getReadyTime(i), i}); };
  for (unsigned i = 0; i < count; ++i)
    if (missing[i] == 0)
      add(i);
  while (!ready.empty() || !later.empty()) {
    while (!later.empty() && later.top().first <= simulation.now) {
      unsigned i = later.top().second;
      ready.insert(i);
      if (tasks[i].drains)
        draining.insert(i);
      later.pop();
    }
    if (ready.empty()) {
      simulation.waitUntil(later.top().first);
      continue;
    }
    auto chosen = ready.begin();
    if (rules.finishesChains && tasks[*chosen].link) {
      int64_t free = simulation.getFreeTime(tasks[*chosen].link);
      auto kernel = std::find_if(chosen, ready.end(), [&](unsigned i) { return !tasks[i].link; });
      if (free > simulation.now) {
        // The collective would only queue, so kernels that end before go first.
        if (kernel == ready.end()) {
          simulation.waitUntil(later.empty() ? free : std::min(free, later.top().first));
          continue;
        }
        if (simulation.now + tasks[*kernel].time <= free)
          chosen = kernel;
      } else if (kernel != ready.end() && graph.stage[*kernel] > graph.stage[*chosen] &&
                 graph.distance[*kernel] < tasks[*chosen].time) {
        // The kernel leads at once to a collective that continues a longer chain.
        chosen = kernel;
      }
    }
    // Kernels that drain fill the time in which others wait, as long as that takes no more memory.
    if (!draining.empty() && simulation.getLiveWith(*chosen) > simulation.getPeak())
      chosen = ready.find(*draining.begin());
    if (memory) {
      auto fits = [&](unsigned i) {
        return simulation.getLiveWith(i) <= memory;
      };
      chosen = std::find_if(ready.begin(), ready.end(), fits);
      if (chosen == ready.end()) {
        // A task that is ready later may take less memory than those ready now.
        if (!later.empty()) {
          simulation.waitUntil(later.top().first);
          continue;
        }
        chosen = std::min_element(ready.begin(), ready.end(), [&](unsigned a, unsigned b) {
          return tasks[a].bytes - simulation.getFreed(a) < tasks[b].bytes - simulation.getFreed(b);
        });
      }
    }
    unsigned i = *chosen;
    ready.erase(chosen);
    draining.erase(i);
    simulation.begin(i);
    for (ArrayRef<unsigned> list : {ArrayRef(graph.users[i]), ArrayRef(graph.holds[i])})
      for (unsigned user : list)
        if (--missing[user] == 0)
          add(user);
  }
  return simulation.end();
}

Schedule meshwright::scheduleTasks(ArrayRef<ScheduleTask> tasks, int64_t memory,
                                   int64_t slack) {
  // Collectives can take longer than modelled: a rank comes late, or does not get the
  // processor back at once. Orders are made and compared for both cases.
  std::vector<ScheduleTask> late(tasks.begin(), tasks.end());
  for (ScheduleTask &task : late)
    if (task.link)
      task.time *= 2;
  Schedule best;
  std::optional<std::pair<int64_t, int64_t>> bestKey;
  std::set<uint64_t> seen;
  for (ArrayRef<ScheduleTask> times : {tasks, ArrayRef<ScheduleTask>(late)}) {
    TaskGraph graph(times);
    for (bool inTurn : {false, true})
      for (unsigned ahead : {8, 4, 2, 1})
        for (bool finishesChains : {false, true}) {
          Schedule made = scheduleGraph(graph, {ahead, finishesChains, inTurn}, memory);
          // Rules often agree.
          ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t *>(made.order.data()),
                                  made.order.size() * sizeof(unsigned));
          if (!seen.insert(llvm::xxh3_64bits(bytes)).second)
            continue;
          Schedule next = ::simulateInOrder(tasks, made.order, slack);
          std::pair<int64_t, int64_t> key(memory ? std::max<int64_t>(next.peak - memory, 0) : 0,
                                          next.time + ::simulateInOrder(late, made.order, slack).time);
          if (bestKey && key >= *bestKey)
            continue;
          bestKey = key;
          best = std::move(next);
        }
  }
  return best;
}

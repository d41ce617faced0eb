//===- ListScheduler.cpp - an order for work and communication ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ListScheduler.h"

#include "meshwright/passes/schedule/Simulation.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <tuple>

using namespace meshwright;
using llvm::ArrayRef;

/// Of so many tasks fewer orders are tried: each takes a good part of a second.
static constexpr size_t kManyTasks = 20000;
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
  /// True for a task that depends on a collective.
  std::vector<bool> waits;
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
  waits.resize(count);
  for (unsigned i = 0; i < count; ++i)
    for (unsigned dependence : tasks[i].dependences) {
      reader[dependence] = std::min(reader[dependence], i);
      users[dependence].push_back(i);
      waits[i] = waits[i] || tasks[dependence].link != 0;
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
  /// The order is made for collectives that take twice their time.
  bool isLate;
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

namespace {

/// Numbers below a limit, in their order.
class NumberSet {
public:
  explicit NumberSet(size_t limit) {
    do
      levels.emplace_back(limit = limit / 64 + 1);
    while (limit > 1);
  }

  bool empty() const { return levels.back().front() == 0; }
  void insert(unsigned i) {
    for (std::vector<uint64_t> &level : levels) {
      level[i / 64] |= uint64_t(1) << i % 64;
      i /= 64;
    }
  }
  void erase(unsigned i) {
    for (std::vector<uint64_t> &level : levels) {
      level[i / 64] &= ~(uint64_t(1) << i % 64);
      if (level[i / 64])
        return;
      i /= 64;
    }
  }
  std::optional<unsigned> getFirst() const { return getFrom(0); }
  /// The first number from `i` on.
  std::optional<unsigned> getFrom(unsigned i) const {
    for (size_t level = 0; level < levels.size(); ++level) {
      uint64_t rest = i / 64 < levels[level].size() ? levels[level][i / 64] >> i % 64 : 0;
      if (rest) {
        i += llvm::countr_zero(rest);
        for (; level > 0; --level)
          i = i * 64 + llvm::countr_zero(levels[level - 1][i]);
        return i;
      }
      // The next words may have one.
      i = i / 64 + 1;
    }
    return std::nullopt;
  }

private:
  /// The numbers as bits, and for each level the words that are not 0 as bits of the next one.
  std::vector<std::vector<uint64_t>> levels;
};

/// The places of the tasks in the order of the rules: of several that are ready the first one begins.
struct TaskOrder {
  TaskOrder(const TaskGraph &graph, Rules rules) : tasks(graph.tasks.size()), places(graph.tasks.size()) {
    std::vector<std::tuple<int, int64_t, unsigned, int64_t, int64_t, unsigned>> keys;
    keys.reserve(tasks.size());
    for (auto [i, task] : llvm::enumerate(graph.tasks)) {
      int64_t stage = graph.stage[i] / rules.ahead;
      if (rules.finishesChains && task.link)
        stage = -int64_t(graph.stage[i]);
      unsigned turn = rules.inTurn && !task.link ? graph.next[i] : 0;
      if (task.inTurn)
        turn = graph.reader[i];
      int rank = task.link ? 0 : task.drains ? 2 : 1;
      keys.emplace_back(rank, stage, turn, graph.distance[i], -graph.remaining[i], i);
    }
    llvm::sort(keys);
    for (auto [place, key] : llvm::enumerate(keys)) {
      tasks[place] = std::get<5>(key);
      places[tasks[place]] = place;
    }
  }

  /// The task at each place, and the place of each task.
  std::vector<unsigned> tasks, places;
};

/// The ready tasks, in their order. A large program has many: all gathers of weights are ready at its begin. So no
/// search but `findSmallest` visits all of them.
class ReadyTasks {
public:
  ReadyTasks(const TaskGraph &graph, Rules rules)
      : graph(graph), order(graph, rules), all(graph.tasks.size()), kernels(all), draining(all), waiting(all) {}

  bool empty() const { return all.empty(); }
  unsigned getFirst() const { return order.tasks[*all.getFirst()]; }
  std::optional<unsigned> getFirstKernel() const { return getTask(kernels.getFirst()); }
  std::optional<unsigned> getFirstDraining() const { return getTask(draining.getFirst()); }

  void insert(unsigned i) {
    forEachSet(i, [&](NumberSet &places) { places.insert(order.places[i]); });
  }
  void erase(unsigned i) {
    forEachSet(i, [&](NumberSet &places) { places.erase(order.places[i]); });
  }

  /// The first task that runs within these bytes.
  std::optional<unsigned> findFitting(const Simulation &simulation, int64_t memory) const {
    std::optional<unsigned> best;
    for (auto &[bytes, places] : bySize) {
      if (simulation.getLive() + bytes > memory)
        break;
      if (auto first = places.getFirst(); first && (!best || *first < *best))
        best = first;
    }
    for (auto place = waiting.getFirst(); place && (!best || *place < *best); place = waiting.getFrom(*place + 1))
      if (simulation.getLiveWith(order.tasks[*place]) <= memory)
        best = place;
    return getTask(best);
  }
  /// The first of the tasks behind which the fewest bytes are alive.
  unsigned findSmallest(const Simulation &simulation) const {
    unsigned best = 0;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (auto place = all.getFirst(); place; place = all.getFrom(*place + 1)) {
      unsigned i = order.tasks[*place];
      int64_t bytes = graph.tasks[i].bytes - simulation.getFreed(i);
      if (bytes < least) {
        least = bytes;
        best = i;
      }
    }
    return best;
  }

private:
  std::optional<unsigned> getTask(std::optional<unsigned> place) const {
    return place ? std::optional(order.tasks[*place]) : std::nullopt;
  }
  template <typename Visit> void forEachSet(unsigned i, Visit visit) {
    const ScheduleTask &task = graph.tasks[i];
    visit(all);
    if (!task.link)
      visit(kernels);
    if (task.drains)
      visit(draining);
    if (graph.waits[i])
      visit(waiting);
    else
      visit(bySize.try_emplace(task.bytes, graph.tasks.size()).first->second);
  }

  const TaskGraph &graph;
  TaskOrder order;
  /// Places in the order. `waiting` has the tasks that wait for a collective, which frees memory then; `bySize` has
  /// the others, by the bytes of their results.
  NumberSet all, kernels, draining, waiting;
  std::map<int64_t, NumberSet> bySize;
};

} // namespace

static Schedule scheduleGraph(const TaskGraph &graph, Rules rules, int64_t memory) {
  ArrayRef<ScheduleTask> tasks = graph.tasks;
  size_t count = tasks.size();
  std::vector<unsigned> missing(count);
  for (unsigned i = 0; i < count; ++i)
    missing[i] = tasks[i].dependences.size() + graph.held[i];
  ReadyTasks ready(graph, rules);
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
      ready.insert(later.top().second);
      later.pop();
    }
    if (ready.empty()) {
      simulation.waitUntil(later.top().first);
      continue;
    }
    unsigned chosen = ready.getFirst();
    if (rules.finishesChains && tasks[chosen].link) {
      int64_t free = simulation.getFreeTime(tasks[chosen].link);
      std::optional<unsigned> kernel = ready.getFirstKernel();
      if (free > simulation.now) {
        // The collective would only queue, so kernels that end before go first.
        if (!kernel) {
          simulation.waitUntil(later.empty() ? free : std::min(free, later.top().first));
          continue;
        }
        if (simulation.now + tasks[*kernel].time <= free)
          chosen = *kernel;
      } else if (kernel && graph.stage[*kernel] > graph.stage[chosen] &&
                 graph.distance[*kernel] < tasks[chosen].time) {
        // The kernel leads at once to a collective that continues a longer chain.
        chosen = *kernel;
      }
    }
    // Kernels that drain fill the time in which others wait, as long as that takes no more memory.
    if (auto draining = ready.getFirstDraining();
        draining && simulation.getLiveWith(chosen) > simulation.getPeak())
      chosen = *draining;
    if (memory) {
      if (std::optional<unsigned> fitting = ready.findFitting(simulation, memory)) {
        chosen = *fitting;
      } else if (!later.empty()) {
        // A task that is ready later may take less memory than those ready now.
        simulation.waitUntil(later.top().first);
        continue;
      } else {
        chosen = ready.findSmallest(simulation);
      }
    }
    ready.erase(chosen);
    simulation.begin(chosen);
    for (ArrayRef<unsigned> list : {ArrayRef(graph.users[chosen]), ArrayRef(graph.holds[chosen])})
      for (unsigned user : list)
        if (--missing[user] == 0)
          add(user);
  }
  return simulation.end();
}

namespace {

/// Tries orders, and keeps the best.
class ListSearch {
public:
  ListSearch(ArrayRef<ScheduleTask> tasks, int64_t memory, int64_t slack)
      : tasks(tasks), memory(memory), slack(slack), late(tasks.begin(), tasks.end()), graph(tasks) {
    for (ScheduleTask &task : late)
      if (task.link)
        task.time *= 2;
  }

  void tryRules(Rules rules);

  Schedule best;
  Rules bestRules{};

private:
  ArrayRef<ScheduleTask> tasks;
  int64_t memory, slack;
  /// Collectives can take longer than modelled: a rank comes late, or does not get the processor back at once.
  /// Orders are made and compared for both cases.
  std::vector<ScheduleTask> late;
  TaskGraph graph;
  std::optional<TaskGraph> lateGraph;
  /// Bytes above the limit, and picoseconds in both cases.
  std::optional<std::pair<int64_t, int64_t>> bestKey;
  std::set<uint64_t> seen;
};

} // namespace

void ListSearch::tryRules(Rules rules) {
  if (rules.isLate && !lateGraph)
    lateGraph.emplace(late);
  Schedule made = scheduleGraph(rules.isLate ? *lateGraph : graph, rules, memory);
  // Rules often agree.
  ArrayRef<uint8_t> bytes(reinterpret_cast<const uint8_t *>(made.order.data()), made.order.size() * sizeof(unsigned));
  if (!seen.insert(llvm::xxh3_64bits(bytes)).second)
    return;
  Schedule next = ::simulateInOrder(tasks, made.order, slack);
  std::pair<int64_t, int64_t> key(memory ? std::max<int64_t>(next.peak - memory, 0) : 0,
                                  next.time + ::simulateInOrder(late, made.order, slack).time);
  if (bestKey && key >= *bestKey)
    return;
  bestKey = key;
  best = std::move(next);
  bestRules = rules;
}

Schedule meshwright::scheduleTasks(ArrayRef<ScheduleTask> tasks, int64_t memory,
                                   int64_t slack) {
  ListSearch search(tasks, memory, slack);
  if (tasks.size() > kManyTasks) {
    for (unsigned ahead : {8, 1})
      for (bool finishesChains : {false, true})
        search.tryRules({/*isLate=*/false, ahead, finishesChains, /*inTurn=*/false});
    return std::move(search.best);
  }
  // All combinations take twice as long, and seldom find a better order: few rules win on programs of layers.
  for (bool isLate : {false, true}) {
    search.tryRules({isLate, /*ahead=*/8, /*finishesChains=*/false, /*inTurn=*/false});
    for (unsigned ahead : {8, 4, 2, 1})
      search.tryRules({isLate, ahead, /*finishesChains=*/true, /*inTurn=*/false});
    search.tryRules({isLate, /*ahead=*/8, /*finishesChains=*/true, /*inTurn=*/true});
  }
  Rules rules = search.bestRules;
  rules.finishesChains = !rules.finishesChains;
  search.tryRules(rules);
  rules = search.bestRules;
  rules.inTurn = !rules.inTurn;
  search.tryRules(rules);
  return std::move(search.best);
}

//===- ListSchedulerTests.cpp - orders of work and communication ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ListScheduler.h"

#include "gtest/gtest.h"

#include <random>

using namespace meshwright;

namespace {

/// Two chunks of product, sum, product.
std::vector<ScheduleTask> makeChunks() {
  std::vector<ScheduleTask> tasks;
  for (unsigned chunk = 0; chunk < 2; ++chunk) {
    unsigned first = tasks.size();
    tasks.push_back({0, 10, {}, 4});
    tasks.push_back({1, 8, {first}, 4});
    tasks.push_back({0, 10, {first + 1}, 4});
  }
  return tasks;
}

TEST(ListScheduler, HidesOneChunkBehindAnother) {
  Schedule schedule = scheduleTasks(makeChunks());
  EXPECT_EQ(schedule.order, (std::vector<unsigned>{0, 1, 3, 4, 2, 5}));
  EXPECT_EQ(schedule.time, 40);
  EXPECT_EQ(schedule.exposed, 0);
  EXPECT_EQ(schedule.communication, 16);
  // As they stand each waits for its own sum.
  EXPECT_EQ(simulateInOrder(makeChunks()).time, 56);
  EXPECT_EQ(simulateInOrder(makeChunks()).exposed, 16);
}

TEST(ListScheduler, CollectivesOfOneLinkTakeTurns) {
  std::vector<ScheduleTask> tasks{{1, 8, {}, 0}, {1, 8, {}, 0}, {0, 4, {}, 0}};
  EXPECT_EQ(scheduleTasks(tasks).time, 16);
  EXPECT_EQ(scheduleTasks(tasks).communication, 16);
  tasks[1].link = 2;
  EXPECT_EQ(scheduleTasks(tasks).time, 8);
}

TEST(ListScheduler, KeepsChainsSideBySide) {
  // Three chains, one a little shorter: none may be left over.
  std::vector<ScheduleTask> tasks;
  for (unsigned chain = 0; chain < 3; ++chain)
    for (unsigned i = 0; i < 50; ++i) {
      ScheduleTask product{0, chain == 0 ? 99 : 100, {}, 0};
      if (i > 0)
        product.dependences.push_back(tasks.size() - 1);
      tasks.push_back(product);
      tasks.push_back({1, 60, {unsigned(tasks.size() - 1)}, 0});
    }
  Schedule schedule = scheduleTasks(tasks);
  EXPECT_LT(schedule.exposed, 10 * 60);
}

TEST(ListScheduler, LeavesNoChunkBehindBeforeABarrier) {
  // A long way to each chunk's sum, then a short one through something that needs
  // all chunks: who goes through it first leaves the last sum with nothing beside.
  std::vector<ScheduleTask> tasks;
  std::vector<unsigned> before;
  auto add = [&](ScheduleTask task) {
    tasks.push_back(std::move(task));
    return unsigned(tasks.size() - 1);
  };
  for (unsigned layer = 0; layer < 3; ++layer) {
    ScheduleTask attention{0, 5, {}, 0};
    for (unsigned chunk = 0; chunk < 3; ++chunk) {
      unsigned last = add({0, 60, {}, 0});
      if (layer > 0)
        tasks[last].dependences.push_back(before[chunk]);
      last = add({0, 60, {last}, 0});
      last = add({0, 60, {last}, 0});
      last = add({1, 30, {last}, 0});
      attention.dependences.push_back(add({0, 20, {last}, 0}));
    }
    unsigned whole = add(attention);
    before.clear();
    for (unsigned chunk = 0; chunk < 3; ++chunk)
      before.push_back(add({1, 5, {add({0, 10, {whole}, 0})}, 0}));
  }
  // But for the end, where nothing is left to compute.
  EXPECT_LE(scheduleTasks(tasks).exposed, 5);
}

TEST(ListScheduler, FinishesAChainBeforeItStartsTheNext) {
  // The kernel of each chunk follows two collectives in a row.
  std::vector<ScheduleTask> tasks;
  for (unsigned chunk = 0; chunk < 3; ++chunk) {
    unsigned first = tasks.size();
    tasks.push_back({1, 20, {}, 0});
    tasks.push_back({0, 1, {first}, 0});
    tasks.push_back({1, 20, {first + 1}, 0});
    for (int i = 0; i < 3; ++i)
      tasks.push_back({0, 20, {first + 2}, 0});
  }
  EXPECT_EQ(scheduleTasks(tasks).exposed, 40);
}

TEST(ListScheduler, WaitsLateForWhatMayComeLate) {
  // At 110 both the long task and the short one behind the second sum could run; a
  // little later no task would have waited.
  std::vector<ScheduleTask> tasks{{0, 10, {}, 0}, {0, 10, {}, 0},  {1, 50, {0}, 0}, {1, 49, {1}, 0},
                                  {0, 1, {3}, 0}, {0, 99, {1}, 0}, {0, 90, {2}, 0}};
  Schedule schedule = scheduleTasks(tasks);
  EXPECT_EQ(schedule.exposed, 0);
  EXPECT_EQ(schedule.order.back(), 4u);
}

TEST(ListScheduler, WaitsForAScatterOnceItHadItsSlack) {
  // A product makes a gradient of 8 bytes, which is scattered in 10. Nine kernels of 10 follow.
  std::vector<ScheduleTask> tasks{{0, 10, {}, 8}, {1, 10, {0}, 1}};
  tasks.back().frees = true;
  for (unsigned i = 0; i < 9; ++i)
    tasks.push_back({0, 10, {}, 0});
  auto getTimeBefore = [&](int64_t slack) {
    Schedule schedule = scheduleTasks(tasks, /*memory=*/0, slack);
    EXPECT_EQ(schedule.exposed, 0);
    if (schedule.waits.size() != 1 || schedule.waits.front().first != 1)
      return int64_t(-1);
    unsigned kernel = schedule.waits.front().second;
    return schedule.finish[kernel] - tasks[kernel].time;
  };
  // The scatter begins at 10. Each kernel before the wait could run while the scatter was late.
  EXPECT_EQ(getTimeBefore(1), 20);
  EXPECT_EQ(getTimeBefore(kTightSlack), 30);
  EXPECT_EQ(getTimeBefore(kLooseSlack), 90);
}

TEST(ListScheduler, KeepsTwoPlacesForARing) {
  // There would be time to bring all before the first is read.
  std::vector<ScheduleTask> tasks{{0, 1, {}, 4}, {0, 100, {}, 0}};
  unsigned values = 0;
  for (unsigned step = 0; step < 4; ++step) {
    if (step > 0) {
      tasks.push_back({1, 2, {values}, 4});
      values = tasks.size() - 1;
    }
    tasks.push_back({0, 50, {1, values}, 0});
  }
  Schedule schedule = scheduleTasks(tasks);
  EXPECT_EQ(schedule.peak, 8);
  EXPECT_EQ(schedule.exposed, 0);
}

TEST(ListScheduler, KeepsToTheMemoryGiven) {
  EXPECT_EQ(scheduleTasks(makeChunks()).peak, 16);
  Schedule frugal = scheduleTasks(makeChunks(), 12);
  EXPECT_LE(frugal.peak, 12);
  EXPECT_GT(frugal.time, 40);
  // The peak shows a limit that no order keeps to.
  EXPECT_GT(scheduleTasks(makeChunks(), 4).peak, 4);
}

TEST(ListScheduler, KeepsDependencesOfAnyGraph) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<ScheduleTask> tasks(random() % 60 + 1);
    int64_t work = 0;
    for (unsigned i = 0; i < tasks.size(); ++i) {
      tasks[i].link = random() % 3;
      tasks[i].time = random() % 20;
      tasks[i].bytes = random() % 8;
      for (unsigned j = 0; i && j < random() % 3; ++j)
        tasks[i].dependences.push_back(random() % i);
      if (tasks[i].link == 0)
        work += tasks[i].time;
    }
    for (int64_t memory : {0, 10}) {
      Schedule schedule = scheduleTasks(tasks, memory);
      ASSERT_EQ(schedule.order.size(), tasks.size());
      std::vector<bool> begun(tasks.size());
      for (unsigned i : schedule.order) {
        EXPECT_FALSE(begun[i]);
        for (unsigned dependence : tasks[i].dependences)
          EXPECT_TRUE(begun[dependence]);
        begun[i] = true;
      }
      EXPECT_EQ(schedule.time, work + schedule.exposed);
      EXPECT_EQ(schedule.order, scheduleTasks(tasks, memory).order);
    }
  }
}

} // namespace

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
  EXPECT_EQ(playInOrder(makeChunks()).time, 56);
  EXPECT_EQ(playInOrder(makeChunks()).exposed, 16);
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

TEST(ListScheduler, KeepsToTheMemoryGiven) {
  EXPECT_EQ(scheduleTasks(makeChunks()).peak, 16);
  Schedule frugal = scheduleTasks(makeChunks(), 12);
  EXPECT_LE(frugal.peak, 12);
  EXPECT_GT(frugal.time, 40);
  // What no order keeps to shows in the peak.
  EXPECT_GT(scheduleTasks(makeChunks(), 4).peak, 4);
}

TEST(ListScheduler, KeepsDependencesOfAnyGraph) {
  std::mt19937 random(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<ScheduleTask> tasks(random() % 60 + 1);
    int64_t work = 0;
    for (unsigned i = 0; i < tasks.size(); ++i) {
      tasks[i].stream = random() % 3;
      tasks[i].time = random() % 20;
      tasks[i].bytes = random() % 8;
      for (unsigned j = 0; i && j < random() % 3; ++j)
        tasks[i].dependences.push_back(random() % i);
      if (tasks[i].stream == 0)
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

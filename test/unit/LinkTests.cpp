//===- LinkTests.cpp - what throttled collectives take --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/runtime/include/World.h"
#include "meshwright/runtime/src/ranks/Link.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <chrono>
#include <thread>

using namespace meshwright;
using namespace meshwright::rt;

namespace {

TEST(Link, Text) {
  std::string error;
  auto link = parseLink("latency=20us,bandwidth=2GB/s", error);
  ASSERT_TRUE(link) << error;
  EXPECT_DOUBLE_EQ(link->latency, 20e-6);
  EXPECT_DOUBLE_EQ(link->bandwidth, 2e9);
  link = parseLink("bandwidth=1.5MB/s", error);
  ASSERT_TRUE(link) << error;
  EXPECT_EQ(link->latency, 0);
  EXPECT_DOUBLE_EQ(link->bandwidth, 1.5e6);
  EXPECT_EQ(link->jitter, 0);
  link = parseLink("jitter=50us", error);
  ASSERT_TRUE(link) << error;
  EXPECT_DOUBLE_EQ(link->jitter, 50e-6);
  for (const char *text : {"", "latency", "latency=", "latency=-1us", "latency=3", "latency=1us,",
                           "bandwidth=0B/s", "bandwidth=2GB", "jitter=1B/s", "speed=1B/s", "latency=nans"}) {
    error.clear();
    EXPECT_FALSE(parseLink(text, error)) << text;
    EXPECT_NE(error.find("is no part of a link: expected latency="), std::string::npos) << error;
  }
}

/// A collective over `ranks` ranks, dimension 0, on f32 tensors of those local
/// sizes before and after.
mw_rt_collective describe(int64_t kind, int64_t ranks, int64_t before, int64_t after) {
  mw_rt_collective what = {};
  what.kind = kind;
  what.group.count = 1;
  what.group.axes[0] = {1, ranks};
  what.num_tensors = 1;
  what.tensors[0].dtype = MW_F32;
  what.tensors[0].rank = 1;
  what.tensors[0].in_shape[0] = before;
  what.tensors[0].out_shape[0] = after;
  return what;
}

TEST(Traffic, IsThatOfTheCostModel) {
  for (int64_t ranks : {1, 2, 3, 8}) {
    struct {
      int64_t kind;
      dist::CollectiveKind model;
      int64_t before, after;
    } cases[] = {{MW_RT_ALL_REDUCE, dist::CollectiveKind::AllReduce, 1001, 1001},
                 {MW_RT_REDUCE_SCATTER, dist::CollectiveKind::ReduceScatter, 120 * ranks, 120},
                 {MW_RT_ALL_GATHER, dist::CollectiveKind::AllGather, 7, 7 * ranks},
                 {MW_RT_ALL_TO_ALL, dist::CollectiveKind::AllToAll, 240, 240}};
    for (auto &each : cases) {
      mw_rt_collective what = describe(each.kind, ranks, each.before, each.after);
      Traffic traffic = trafficOf(what, 0);
      EXPECT_EQ(traffic.bytes,
                getBytesSent(each.model, ranks, 4 * std::max(each.before, each.after)));
      EXPECT_EQ(traffic.steps, getSteps(each.model, ranks));
    }
  }
}

TEST(Traffic, OfAPermuteThatMovesNothing) {
  struct {
    mw_rt_collective what;
    int64_t from[2];
  } program = {describe(MW_RT_PERMUTE, 2, 10, 10), {1, 0}};
  program.what.extra = sizeof(mw_rt_collective) / 8;
  EXPECT_EQ(trafficOf(program.what, 0).bytes, 40);
  program.from[0] = 0;
  program.from[1] = 1;
  EXPECT_EQ(trafficOf(program.what, 0).bytes, 0);
}

/// Only between ranks that it names.
TEST(Traffic, OfAPermuteThatLeavesRanksOut) {
  struct {
    mw_rt_collective what;
    int64_t from[4];
  } program = {describe(MW_RT_PERMUTE, 4, 10, 10), {-1, 0, 0, -1}};
  program.what.extra = sizeof(mw_rt_collective) / 8;
  const int64_t bytes[] = {80, 0, 0, 0}, steps[] = {1, 1, 1, 0};
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(trafficOf(program.what, rank).bytes, bytes[rank]);
    EXPECT_EQ(trafficOf(program.what, rank).steps, steps[rank]);
  }
}

const mw_rt_collective sum = describe(MW_RT_ALL_REDUCE, 2, 1000, 1000);

int32_t addTwice(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                 const void *const *, const void **) {
  const void *inputs[] = {arguments[0]};
  void *outputs[] = {const_cast<void *>(arguments[1])};
  for (int i = 0; i < 2; ++i)
    if (int32_t status = mw_rt_run_collective(context, 0, &sum, inputs, outputs))
      return status;
  return 0;
}

TEST(Link, CollectivesTakeAtLeastItsTime) {
  // 4000 B at 1 MB/s and 2 steps of 3 ms, twice.
  setenv("MESHWRIGHT_LINK", "latency=3ms,bandwidth=1MB/s", 1);
  std::string error;
  auto world = World::create("local", 2, {"the sum"}, error);
  ASSERT_TRUE(world) << error;
  unsetenv("MESHWRIGHT_LINK");
  std::vector<float> data[4] = {std::vector<float>(1000, 1), std::vector<float>(1000),
                                std::vector<float>(1000, 2), std::vector<float>(1000)};
  std::vector<RankBuffers> buffers(2);
  for (int rank = 0; rank < 2; ++rank)
    buffers[rank].arguments = {data[2 * rank].data(), data[2 * rank + 1].data()};
  auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(world->run(addTwice, buffers, {}, error)) << error;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(data[2 * rank + 1], std::vector<float>(1000, 3));
}

TEST(Link, JitterTakesOtherTimes) {
  setenv("MESHWRIGHT_LINK", "jitter=4ms", 1);
  std::string error;
  auto world = World::create("local", 2, {"the sum"}, error);
  ASSERT_TRUE(world) << error;
  unsetenv("MESHWRIGHT_LINK");
  std::vector<float> from(1000, 1), to[2] = {std::vector<float>(1000), std::vector<float>(1000)};
  std::vector<RankBuffers> buffers(2);
  for (int rank = 0; rank < 2; ++rank)
    buffers[rank].arguments = {from.data(), to[rank].data()};
  auto shortest = std::chrono::nanoseconds::max(), longest = std::chrono::nanoseconds::zero();
  for (int i = 0; i < 20; ++i) {
    auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(world->run(addTwice, buffers, {}, error)) << error;
    std::chrono::nanoseconds time = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, time);
    longest = std::max(longest, time);
  }
  // The mean is 5.3 ms, the standard deviation 1.3 ms.
  EXPECT_GE(longest - shortest, std::chrono::milliseconds(1));
  EXPECT_GE(longest, std::chrono::milliseconds(4));
}

/// Ranks 0 and 1 add, 2 fails when they had time to.
struct Adder {
  World *world = nullptr;
  int64_t rank = 0;
  bool hasAdded = false;
};

int32_t addUntilOneFails(mw_rt_context *context, char *, const void *const *arguments,
                         const void *const *, const void *const *, const void **) {
  auto &adder = *static_cast<Adder *>(const_cast<void *>(arguments[0]));
  if (adder.rank >= 2) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (adder.rank == 2)
      adder.world->fail(adder.rank, 0, "enough");
    return adder.rank == 2;
  }
  std::vector<float> from(1000), to(1000);
  const void *inputs[] = {from.data()};
  void *outputs[] = {to.data()};
  int32_t status = mw_rt_run_collective(context, 0, &sum, inputs, outputs);
  adder.hasAdded = status == 0;
  return status;
}

TEST(Link, WhatIsLongerThanClocksCountIsLong) {
  for (const char *link : {"latency=1e12s", "latency=1e300s", "bandwidth=1e-300B/s"}) {
    setenv("MESHWRIGHT_LINK", link, 1);
    std::string error;
    auto world = World::create("local", 4, {"the sum"}, error);
    ASSERT_TRUE(world) << error;
    unsetenv("MESHWRIGHT_LINK");
    Adder adders[4];
    std::vector<RankBuffers> buffers(4);
    for (int rank = 0; rank < 4; ++rank) {
      adders[rank] = {world.get(), rank};
      buffers[rank].arguments = {&adders[rank]};
    }
    EXPECT_FALSE(world->run(addUntilOneFails, buffers, {}, error));
    EXPECT_NE(error.find("enough"), std::string::npos) << error;
    EXPECT_FALSE(adders[0].hasAdded || adders[1].hasAdded) << link;
  }
}

TEST(Link, AWrongOneIsRefused) {
  setenv("MESHWRIGHT_LINK", "fast", 1);
  std::string error;
  EXPECT_EQ(World::create("local", 2, {}, error), nullptr);
  unsetenv("MESHWRIGHT_LINK");
  EXPECT_NE(error.find("link 'fast'"), std::string::npos) << error;
}

} // namespace

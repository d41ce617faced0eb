//===- WorldTests.cpp - ranks that meet, fail and wait --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

using namespace meshwright::rt;

namespace {

constexpr int64_t kRanks = 4;

/// An all-reduce of one f32 over all ranks, or over pairs of neighbours.
mw_rt_collective describeSum(int64_t stride, int64_t size) {
  mw_rt_collective what = {};
  what.kind = MW_RT_ALL_REDUCE;
  what.reduction = MW_RT_SUM;
  what.group.count = 1;
  what.group.axes[0].stride = stride;
  what.group.axes[0].size = size;
  what.num_tensors = 1;
  what.tensors[0].dtype = MW_F32;
  what.tensors[0].rank = 1;
  what.tensors[0].in_shape[0] = what.tensors[0].out_shape[0] = 1;
  return what;
}

const mw_rt_collective sumOfAll = describeSum(1, kRanks);
const mw_rt_collective sumOfPairs = describeSum(1, 2);

int32_t addUp(mw_rt_context *context, int64_t op, const mw_rt_collective &what, float &value) {
  const void *inputs[] = {&value};
  float sum = 0;
  void *outputs[] = {&sum};
  int32_t status = mw_rt_run_collective(context, op, &what, inputs, outputs);
  value = sum;
  return status;
}

enum Behaviour { Normal, Absent, OtherGroup, OtherOp, Failing };

/// A rank's argument.
struct Place {
  World *world = nullptr;
  /// How many ranks have begun, of this run.
  std::atomic<int64_t> *begun = nullptr;
  int64_t rank = 0;
  Behaviour behaviour = Normal;
  float result = 0;
};

int32_t runRank(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                const void *const *, const void **) {
  auto &place = *static_cast<Place *>(const_cast<void *>(arguments[0]));
  float value = float(1 << place.rank);
  // The first rank may wait long until the thread of another one is scheduled.
  ++*place.begun;
  while (*place.begun < kRanks)
    std::this_thread::yield();
  if (place.behaviour == Absent)
    return 0;
  if (place.behaviour == Failing) {
    place.world->fail(place.rank, 1, "it broke");
    return 1;
  }
  if (place.behaviour == OtherGroup)
    return addUp(context, 1, sumOfPairs, value);
  if (int32_t status = addUp(context, place.behaviour == OtherOp, sumOfAll, value))
    return status;
  place.result = value;
  return 0;
}

struct Fixture : testing::Test {
  std::string error;
  WorldPtr world = World::create("local", kRanks, {"the sum", "the other"}, error);
  Place places[kRanks];

  bool run(double timeout) {
    std::vector<RankBuffers> buffers(kRanks);
    std::atomic<int64_t> begun{0};
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      places[rank].world = world.get();
      places[rank].begun = &begun;
      places[rank].rank = rank;
      buffers[rank].arguments = {&places[rank]};
    }
    error.clear();
    RunOptions options;
    options.timeout = timeout;
    return world->run(runRank, buffers, options, error);
  }
};

using WorldTest = Fixture;

TEST_F(WorldTest, RanksMeet) {
  ASSERT_TRUE(run(30)) << error;
  for (const Place &place : places)
    EXPECT_EQ(place.result, 15);
}

TEST_F(WorldTest, AnAbsentRankIsNamedAfterTheTimeout) {
  places[2].behaviour = Absent;
  auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(run(1));
  // Less than the timeout that there is without one.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
  EXPECT_NE(error.find("the sum: timed out after 1 s waiting for rank 2"), std::string::npos)
      << error;
}

TEST_F(WorldTest, AFailureEndsAllRanksAtOnce) {
  places[3].behaviour = Failing;
  EXPECT_FALSE(run(1000));
  EXPECT_FALSE(world->isStuck());
  EXPECT_EQ(error, "rank 3: the other: it broke");
}

TEST_F(WorldTest, ALaterRunIsNotHarmed) {
  places[1].behaviour = Absent;
  EXPECT_FALSE(run(0.1));
  places[1].behaviour = Normal;
  ASSERT_TRUE(run(30)) << error;
  for (const Place &place : places)
    EXPECT_EQ(place.result, 15);
}

TEST_F(WorldTest, RanksInDifferentGroupsDoNotHang) {
  places[1].behaviour = OtherGroup;
  EXPECT_FALSE(run(0.2));
  EXPECT_NE(error.find("timed out"), std::string::npos) << error;
}

TEST_F(WorldTest, RanksAtDifferentOpsAreNamed) {
  places[1].behaviour = OtherOp;
  EXPECT_FALSE(run(30));
  EXPECT_NE(error.find("is at another collective: the "), std::string::npos) << error;
}

TEST(World, UnknownBackends) {
  std::string error;
  EXPECT_EQ(World::create("smoke signals", 1, {}, error), nullptr);
  EXPECT_EQ(error.rfind("backend 'smoke signals' is not available; available: ", 0), 0u) << error;
  EXPECT_NE(error.find("local"), std::string::npos) << error;
}

TEST(Groups, CoordinatesOverPartsOfAxes) {
  // 2 x 8 ranks; over the major half of the second axis, then the first.
  mw_rt_axes axes = {};
  axes.count = 2;
  axes.axes[0] = {4, 2};
  axes.axes[1] = {8, 2};
  int64_t self = 0;
  EXPECT_EQ(groupOf(axes, 13, self), (std::vector<int64_t>{1, 9, 5, 13}));
  EXPECT_EQ(self, 3);
}

TEST(Types, RoundTripsAndRounding) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    float b = bf16ToFloat(bits), h = f16ToFloat(bits);
    if (!std::isnan(b))
      EXPECT_EQ(floatToBf16(b), bits);
    else
      EXPECT_TRUE(std::isnan(bf16ToFloat(floatToBf16(b))));
    if (!std::isnan(h))
      EXPECT_EQ(floatToF16(h), bits);
    else
      EXPECT_TRUE(std::isnan(f16ToFloat(floatToF16(h))));
  }
  // Ties go to even.
  EXPECT_EQ(floatToBf16(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(floatToBf16(1 + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(floatToF16(1 + 0x1p-11f), 0x3c00);
  EXPECT_EQ(floatToF16(65519.f), 0x7bff);
  EXPECT_EQ(floatToF16(65520.f), 0x7c00);
  EXPECT_EQ(floatToF16(0x1p-25f), 0);
  EXPECT_EQ(floatToF16(0x1.8p-25f), 1);
}

} // namespace

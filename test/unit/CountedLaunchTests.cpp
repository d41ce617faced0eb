//===- CountedLaunchTests.cpp - launches on the rows that exist -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/World.h"

#include "gtest/gtest.h"

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

using namespace meshwright::rt;

namespace {

constexpr int64_t kRoom = 12;

/// A launch on rows. `offsets` counts the rows that exist.
struct Test {
  int64_t items, offsets[3], itemsAreRows;
  float result[kRoom * 2];
  std::mutex mutex;
  std::set<std::pair<int64_t, int64_t>> parts;
};
using Parts = std::set<std::pair<int64_t, int64_t>>;

void noteItems(void *const *buffers, int64_t begin, int64_t end, void *) {
  auto &test = *static_cast<Test *>(buffers[0]);
  std::lock_guard<std::mutex> lock(test.mutex);
  test.parts.insert({begin, end});
}

int32_t launch(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
               const void *const *, const void **) {
  auto &test = *static_cast<Test *>(const_cast<void *>(arguments[0]));
  mw_rt_launch launch = {};
  launch.items = test.items;
  launch.grain = 1;
  launch.rows = kRoom;
  launch.counter = 1;
  launch.last = 2;
  launch.items_are_rows = test.itemsAreRows;
  launch.num_inputs = 2;
  launch.num_outputs = 1;
  launch.outputs[0] = {MW_F32, kRoom * 2};
  void *buffers[] = {&test, test.offsets, test.result};
  return mw_rt_run_kernel(context, 0, &launch, noteItems, buffers);
}

bool run(Test &test, std::string &error) {
  WorldPtr world = World::create("local", 1, {"the op"}, error);
  RunOptions options;
  options.threadsPerRank = 2;
  options.checkFinite = true;
  std::vector<RankBuffers> buffers(1);
  buffers.front().arguments = {&test};
  return world->run(launch, buffers, options, error);
}

/// Rows behind `rows` are NaN.
std::unique_ptr<Test> makeTest(int64_t items, int64_t rows, int64_t itemsAreRows) {
  auto test = std::make_unique<Test>();
  test->items = items;
  test->offsets[2] = rows;
  test->itemsAreRows = itemsAreRows;
  for (int64_t i = 0; i < kRoom * 2; ++i)
    test->result[i] = i < rows * 2 ? 1 : NAN;
  return test;
}

TEST(CountedLaunches, ComputeRowsThatExist) {
  std::string error;
  // An item is a row, two items are one, or an item is three rows.
  struct {
    int64_t items, rows;
    Parts parts;
  } cases[] = {
      {12, 6, {{0, 3}, {3, 6}}}, {12, 12, {{0, 6}, {6, 12}}}, {12, 1, {{0, 1}}}, {12, 0, {}},
      {24, 5, {{0, 5}, {5, 10}}}, {4, 4, {{0, 1}, {1, 2}}},    {4, 3, {{0, 1}}},
  };
  for (auto &[items, rows, parts] : cases) {
    auto test = makeTest(items, rows, /*itemsAreRows=*/1);
    ASSERT_TRUE(run(*test, error)) << error;
    EXPECT_EQ(test->parts, parts) << items << " items, " << rows << " rows";
  }
}

TEST(CountedLaunches, ComputeAllItemsThatAreNoRows) {
  std::string error;
  auto test = makeTest(12, 3, /*itemsAreRows=*/0);
  ASSERT_TRUE(run(*test, error)) << error;
  EXPECT_EQ(test->parts, (Parts{{0, 6}, {6, 12}}));
}

TEST(CountedLaunches, CheckRowsThatExist) {
  std::string error;
  auto test = makeTest(12, 4, /*itemsAreRows=*/1);
  test->result[7] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(run(*test, error));
  EXPECT_NE(error.find("the op"), std::string::npos) << error;
  test->result[7] = 1;
  test->result[8] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(run(*test, error)) << error;
}

} // namespace

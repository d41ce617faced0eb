//===- LocalTests.cpp - the backend whose ranks are threads ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

using namespace meshwright::rt;

namespace {

constexpr int64_t kRanks = 3;

/// All ranks reduce, each in place.
struct Reduction {
  mw_rt_collective what = {};
  std::vector<char> values[kRanks];

  Reduction(DType type, int64_t kind, int64_t count) {
    what.kind = MW_RT_ALL_REDUCE;
    what.reduction = kind;
    what.group.count = 1;
    what.group.axes[0] = {1, kRanks};
    what.num_tensors = 1;
    what.tensors[0].dtype = int64_t(type);
    what.tensors[0].rank = 1;
    what.tensors[0].in_shape[0] = what.tensors[0].out_shape[0] = count;
  }
};

struct Argument {
  Reduction *reduction;
  int64_t rank;
};

int32_t reduceInPlace(mw_rt_context *context, char *, const void *const *arguments,
                      const void *const *, const void *const *, const void **) {
  const auto &argument = *static_cast<const Argument *>(arguments[0]);
  void *values[] = {argument.reduction->values[argument.rank].data()};
  return mw_rt_run_collective(context, 0, &argument.reduction->what, values, values);
}

template <typename T> void put(std::vector<char> &to, int64_t index, T value) {
  std::memcpy(to.data() + index * sizeof(T), &value, sizeof(T));
}
template <typename T> T get(const std::vector<char> &from, int64_t index) {
  T value;
  std::memcpy(&value, from.data() + index * sizeof(T), sizeof(T));
  return value;
}

/// Small integers, odd fractions, zeros of both signs, infinity and NaN.
void draw(DType type, int64_t count, std::mt19937 &generator, std::vector<char> &to) {
  to.resize(count * sizeOf(type));
  for (int64_t i = 0; i < count; ++i) {
    int64_t integer = int64_t(generator() % 201) - 100;
    float value = float(integer) / 7 * std::exp2(float(generator() % 9));
    switch (generator() % 40) {
    case 0:
      value = -0.0f;
      break;
    case 1:
      value = INFINITY;
      break;
    case 2:
      value = NAN;
      break;
    default:
      break;
    }
    switch (type) {
    case DType::F32:
      put(to, i, value);
      break;
    case DType::F64:
      put(to, i, double(value) / 3);
      break;
    case DType::BF16:
      put(to, i, floatToBf16(value));
      break;
    case DType::F16:
      put(to, i, floatToF16(value));
      break;
    case DType::I64:
      put(to, i, integer * 1000000007);
      break;
    case DType::I32:
      put(to, i, int32_t(integer));
      break;
    case DType::I1:
      put(to, i, uint8_t(generator() % 3 == 0));
      break;
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
      ADD_FAILURE() << "codes have no sums";
      break;
    }
  }
}

template <typename T> T combine(int64_t kind, T a, T b) {
  return kind == MW_RT_SUM ? T(a + b) : a != a || a > b ? a : b;
}

template <typename T>
std::vector<char> fold(int64_t kind, const std::vector<char> *values, int64_t count) {
  std::vector<char> result = values[0];
  for (int64_t rank = 1; rank < kRanks; ++rank)
    for (int64_t i = 0; i < count; ++i)
      put(result, i, combine(kind, get<T>(result, i), get<T>(values[rank], i)));
  return result;
}

/// In rank order, element by element.
std::vector<char> expect(DType type, int64_t kind, const std::vector<char> *values, int64_t count) {
  switch (type) {
  case DType::F32:
    return fold<float>(kind, values, count);
  case DType::F64:
    return fold<double>(kind, values, count);
  case DType::I64:
    return fold<int64_t>(kind, values, count);
  case DType::I32:
    return fold<int32_t>(kind, values, count);
  case DType::I1:
    return fold<uint8_t>(MW_RT_MAX, values, count);
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
  case DType::BF16:
  case DType::F16:
    break;
  }
  std::vector<char> result(count * 2);
  for (int64_t i = 0; i < count; ++i) {
    float sum, term;
    widen(type, values[0].data() + 2 * i, &sum, 1);
    for (int64_t rank = 1; rank < kRanks; ++rank) {
      widen(type, values[rank].data() + 2 * i, &term, 1);
      sum = combine(kind, sum, term);
    }
    narrow(type, &sum, result.data() + 2 * i, 1);
  }
  return result;
}

bool isNaN(DType type, const std::vector<char> &values, int64_t i) {
  return std::isnan(loadAsDouble(type, values.data(), i));
}

TEST(Local, ReducesInRankOrderInPlace) {
  std::string error;
  WorldPtr world = World::create("local", kRanks, {"sum"}, error);
  ASSERT_TRUE(world) << error;
  std::mt19937 generator(1);
  std::vector<int64_t> counts{1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 255, 1000, 1023, 20001, 65537};
  for (DType type :
       {DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::I32, DType::I1})
    for (int64_t kind : {MW_RT_SUM, MW_RT_MAX})
      for (int64_t count : counts) {
        Reduction reduction(type, kind, count);
        for (std::vector<char> &values : reduction.values)
          draw(type, count, generator, values);
        std::vector<char> expected = expect(type, kind, reduction.values, count);
        Argument arguments[kRanks];
        std::vector<RankBuffers> buffers(kRanks);
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          arguments[rank] = {&reduction, rank};
          buffers[rank].arguments = {&arguments[rank]};
        }
        ASSERT_TRUE(world->run(reduceInPlace, buffers, {}, error)) << error;
        int64_t size = sizeOf(type), wrong = 0;
        for (const std::vector<char> &values : reduction.values)
          for (int64_t i = 0; i < count; ++i)
            wrong += std::memcmp(values.data() + i * size, expected.data() + i * size, size) != 0 &&
                     !(isNaN(type, values, i) && isNaN(type, expected, i));
        EXPECT_EQ(wrong, 0) << nameOf(type) << ", reduction " << kind << ", " << count
                            << " elements";
      }
}

//===----------------------------------------------------------------------===//
// Ranks that are left out
//===----------------------------------------------------------------------===//

/// Rank 1 sends to rank 2, once rank 0 is through.
struct Passing {
  struct {
    mw_rt_collective what = {};
    int64_t from[kRanks] = {-1, -1, 1};
  } program;
  std::atomic<bool> isFirstThrough{false};
  std::vector<float> before[kRanks], after[kRanks];

  explicit Passing(int64_t count) {
    mw_rt_collective &what = program.what;
    what.kind = MW_RT_PERMUTE;
    what.group.count = 1;
    what.group.axes[0] = {1, kRanks};
    what.extra = sizeof(what) / 8;
    what.num_tensors = 1;
    what.tensors[0].dtype = MW_F32;
    what.tensors[0].rank = 1;
    what.tensors[0].in_shape[0] = what.tensors[0].out_shape[0] = count;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      before[rank].assign(count, float(rank + 1));
      after[rank].assign(count, -1);
    }
  }
};

struct PassingRank {
  Passing *passing;
  int64_t rank;
};

int32_t passOn(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
               const void *const *, const void **) {
  const auto &[passing, rank] = *static_cast<const PassingRank *>(arguments[0]);
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (rank == 1 && !passing->isFirstThrough && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  const void *inputs[] = {passing->before[rank].data()};
  void *outputs[] = {passing->after[rank].data()};
  if (mw_rt_run_collective(context, 0, &passing->program.what, inputs, outputs))
    return 1;
  // A sender goes on to write what it has sent.
  passing->before[rank].assign(passing->before[rank].size(), -2);
  if (rank == 0)
    passing->isFirstThrough = true;
  return 0;
}

TEST(Local, RanksThatAPermuteLeavesOutDoNotWait) {
  // Copied aside, and read where it is.
  for (int64_t count : {7, 100'000}) {
    std::string error;
    WorldPtr world = World::create("local", kRanks, {"permute"}, error);
    ASSERT_TRUE(world) << error;
    Passing passing(count);
    PassingRank arguments[kRanks];
    std::vector<RankBuffers> buffers(kRanks);
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      arguments[rank] = {&passing, rank};
      buffers[rank].arguments = {&arguments[rank]};
    }
    RunOptions options;
    options.timeout = 30;
    ASSERT_TRUE(world->run(passOn, buffers, options, error)) << error;
    EXPECT_EQ(passing.after[0], std::vector<float>(count, 0));
    EXPECT_EQ(passing.after[1], std::vector<float>(count, 0));
    EXPECT_EQ(passing.after[2], std::vector<float>(count, 2));
  }
}

TEST(Local, UnknownCollective) {
  std::string error;
  WorldPtr world = World::create("local", kRanks, {"the op"}, error);
  ASSERT_TRUE(world) << error;
  Reduction reduction(DType::F32, MW_RT_SUM, 1);
  reduction.what.kind = 1234;
  Argument arguments[kRanks];
  std::vector<RankBuffers> buffers(kRanks);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    arguments[rank] = {&reduction, rank};
    buffers[rank].arguments = {&arguments[rank]};
  }
  EXPECT_FALSE(world->run(reduceInPlace, buffers, {}, error));
  EXPECT_NE(error.find("the op: unknown collective 1234"), std::string::npos) << error;
}

//===----------------------------------------------------------------------===//
// Nothing is left behind
//===----------------------------------------------------------------------===//

int64_t countEntries(const char *folder) {
  int64_t count = 0;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) {
    (void)entry;
    ++count;
  }
  return count;
}

int64_t residentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

/// A kernel on threads, a collective on a stream.
int32_t useEverything(mw_rt_context *context, char *, const void *const *arguments,
                      const void *const *, const void *const *, const void **) {
  mw_rt_launch launch = {};
  launch.items = 8;
  launch.workspace = 1 << 16;
  void *none[] = {nullptr};
  mw_rt_kernel touch = [](void *const *, int64_t, int64_t, void *workspace) {
    std::memset(workspace, 1, 1 << 16);
  };
  if (mw_rt_run_kernel(context, 0, &launch, touch, none))
    return 1;
  const auto &argument = *static_cast<const Argument *>(arguments[0]);
  void *values[] = {argument.reduction->values[argument.rank].data()};
  if (mw_rt_start(context, 0, &argument.reduction->what, 1, 0, values, values))
    return 1;
  return mw_rt_wait(context, 0, 0);
}

TEST(Local, WorldsLeaveNothingBehind) {
  const char *more = std::getenv("MESHWRIGHT_TEST_WORLDS");
  int64_t worlds = more ? std::atoll(more) : 100, warm = worlds / 5;
  int64_t threads = 0, files = 0;
  [[maybe_unused]] int64_t bytes = 0;
  Reduction reduction(DType::F32, MW_RT_SUM, 10000);
  Argument arguments[kRanks];
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    reduction.values[rank].resize(40000);
    arguments[rank] = {&reduction, rank};
  }
  for (int64_t i = 0; i < worlds; ++i) {
    std::string error;
    WorldPtr world = World::create("local", kRanks, {"sum"}, error);
    ASSERT_TRUE(world) << error;
    std::vector<RankBuffers> buffers(kRanks);
    for (int64_t rank = 0; rank < kRanks; ++rank)
      buffers[rank].arguments = {&arguments[rank]};
    RunOptions options;
    options.threadsPerRank = 2;
    ASSERT_TRUE(world->run(useEverything, buffers, options, error)) << error;
    world.reset();
    if (i == warm) {
      threads = countEntries("/proc/self/task");
      files = countEntries("/proc/self/fd");
      bytes = residentBytes();
    }
  }
  // A thread is listed for a moment after it was joined.
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (countEntries("/proc/self/task") > threads && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_LE(countEntries("/proc/self/task"), threads);
  EXPECT_LE(countEntries("/proc/self/fd"), files);
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
  // The allocator keeps some for later (a sanitizer's, much).
  EXPECT_LE(residentBytes() - bytes, 4 << 20);
#endif
}

} // namespace

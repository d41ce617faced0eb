//===- StreamTests.cpp - kernels over threads, collectives on streams -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Trace.h"
#include "meshwright/runtime/include/World.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

using namespace meshwright::rt;

namespace {

/// Runs one entry on the ranks of a fresh world.
struct Runner {
  std::string error;
  WorldPtr world;
  RunOptions options;

  explicit Runner(int64_t ranks, std::vector<std::string> ops = {"first", "second", "third"})
      : world(World::create("local", ranks, std::move(ops), error)) {}

  /// `argument` is argument 0 of every rank.
  bool run(mw_rt_entry entry, void *argument) {
    std::vector<RankBuffers> buffers(world->getNumRanks());
    for (RankBuffers &mine : buffers)
      mine.arguments = {argument};
    error.clear();
    return world->run(entry, buffers, options, error);
  }
};

template <typename T> T &argumentOf(const void *const *arguments) {
  return *static_cast<T *>(const_cast<void *>(arguments[0]));
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

struct KernelTest {
  KernelTest(int64_t items, int64_t grain) : items(items), grain(grain) {}

  int64_t items, grain;
  std::atomic<int> done[1000] = {};
  std::mutex mutex;
  std::set<std::pair<int64_t, int64_t>> parts;
  std::set<std::thread::id> threads;
  bool aligned = true;
};

void countItems(void *const *buffers, int64_t begin, int64_t end, void *workspace) {
  auto &test = *static_cast<KernelTest *>(buffers[0]);
  for (int64_t i = begin; i < end; ++i)
    ++test.done[i];
  // It belongs to this thread.
  std::memset(workspace, int(begin), 100);
  std::lock_guard<std::mutex> lock(test.mutex);
  test.parts.insert({begin, end});
  test.threads.insert(std::this_thread::get_id());
  test.aligned &= reinterpret_cast<uintptr_t>(workspace) % 64 == 0;
}

int32_t launchCount(mw_rt_context *context, char *, const void *const *arguments,
                    const void *const *, const void *const *, const void **) {
  auto &test = argumentOf<KernelTest>(arguments);
  mw_rt_launch launch = {};
  launch.items = test.items;
  launch.grain = test.grain;
  launch.workspace = 100;
  void *buffers[] = {&test};
  return mw_rt_run_kernel(context, 0, &launch, countItems, buffers);
}

using Parts = std::set<std::pair<int64_t, int64_t>>;

TEST(Kernels, AreCutIntoEqualParts) {
  Runner runner(1);
  runner.options.threadsPerRank = 3;
  KernelTest test(100, 8);
  ASSERT_TRUE(runner.run(launchCount, &test)) << runner.error;
  EXPECT_EQ(test.parts, (Parts{{0, 33}, {33, 66}, {66, 100}}));
  // Any thread that is there does them.
  EXPECT_GE(test.threads.size(), 1u);
  EXPECT_LE(test.threads.size(), 3u);
  EXPECT_TRUE(test.aligned);
  for (int64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(test.done[i], i < 100) << i;
}

TEST(Kernels, FewItemsWakeFewThreads) {
  Runner runner(1);
  runner.options.threadsPerRank = 4;
  KernelTest one(5, 8);
  ASSERT_TRUE(runner.run(launchCount, &one)) << runner.error;
  EXPECT_EQ(one.parts, (Parts{{0, 5}}));
  KernelTest two(23, 8);
  ASSERT_TRUE(runner.run(launchCount, &two)) << runner.error;
  EXPECT_EQ(two.parts, (Parts{{0, 11}, {11, 23}}));
  KernelTest none(0, 8);
  ASSERT_TRUE(runner.run(launchCount, &none)) << runner.error;
  EXPECT_TRUE(none.parts.empty());
}

TEST(Kernels, ThreadsChangeFromRunToRun) {
  Runner runner(2);
  for (int64_t threads : {1, 4, 2, 2, 8, 1}) {
    runner.options.threadsPerRank = threads;
    KernelTest test(1000, 1);
    ASSERT_TRUE(runner.run(launchCount, &test)) << runner.error;
    EXPECT_EQ(int64_t(test.parts.size()), threads);
    // Both ranks did all of it.
    for (std::atomic<int> &done : test.done)
      ASSERT_EQ(done, 2);
  }
}

int32_t launchManyTimes(mw_rt_context *context, char *, const void *const *arguments,
                        const void *const *, const void *const *, const void **) {
  mw_rt_launch launch = {};
  launch.items = 16;
  launch.grain = 1;
  struct Sums {
    int64_t values[16];
  } sums = {};
  void *buffers[] = {&sums};
  mw_rt_kernel add = [](void *const *buffers, int64_t begin, int64_t end, void *) {
    for (int64_t i = begin; i < end; ++i)
      static_cast<Sums *>(buffers[0])->values[i] += i;
  };
  for (int64_t i = 0; i < 2000; ++i)
    if (int32_t status = mw_rt_run_kernel(context, 0, &launch, add, buffers))
      return status;
  for (int64_t i = 0; i < 16; ++i)
    if (sums.values[i] != 2000 * i)
      ++argumentOf<std::atomic<int64_t>>(arguments);
  return 0;
}

TEST(Kernels, ShortOnesInARow) {
  Runner runner(2);
  runner.options.threadsPerRank = 2;
  std::atomic<int64_t> wrong{0};
  ASSERT_TRUE(runner.run(launchManyTimes, &wrong)) << runner.error;
  EXPECT_EQ(wrong, 0);
}

//===----------------------------------------------------------------------===//
// Streams
//===----------------------------------------------------------------------===//

mw_rt_collective describeSum(int64_t size, int64_t count) {
  mw_rt_collective what = {};
  what.kind = MW_RT_ALL_REDUCE;
  what.reduction = MW_RT_SUM;
  what.group.count = 1;
  what.group.axes[0] = {1, size};
  what.num_tensors = 1;
  what.tensors[0].dtype = MW_F32;
  what.tensors[0].rank = 1;
  what.tensors[0].in_shape[0] = what.tensors[0].out_shape[0] = count;
  return what;
}

constexpr int64_t kLong = 20000;
const mw_rt_collective shortSum = describeSum(3, 10);
const mw_rt_collective longSum = describeSum(3, kLong);

/// Many collectives on two streams and the compute stream, waited for late and
/// out of order.
int32_t useStreams(mw_rt_context *context, char *, const void *const *arguments,
                   const void *const *, const void *const *, const void **) {
  constexpr int64_t count = 8;
  std::vector<float> in[count + 1], out[count + 1];
  auto begin = [&](int64_t i, const mw_rt_collective &what, int64_t length) {
    in[i].assign(length, float(i + 1));
    out[i].assign(length, 0);
    const void *inputs[] = {in[i].data()};
    void *outputs[] = {out[i].data()};
    return i == count ? mw_rt_run_collective(context, 0, &what, inputs, outputs)
                      : mw_rt_start(context, 1, &what, 1 + i % 2, i, inputs, outputs);
  };
  for (int64_t round = 0; round < 20; ++round) {
    for (int64_t i = 0; i <= count; ++i)
      if (int32_t status = i % 3 ? begin(i, longSum, kLong) : begin(i, shortSum, 10))
        return status;
    for (int64_t i = count; i-- > 0;)
      if (int32_t status = mw_rt_wait(context, 2, i))
        return status;
    for (int64_t i = 0; i <= count; ++i)
      for (float value : out[i])
        if (value != 3 * float(i + 1))
          ++argumentOf<std::atomic<int64_t>>(arguments);
  }
  return 0;
}

TEST(Streams, CollectivesInAnyOrderOfWaits) {
  Runner runner(3);
  for (int64_t run = 0; run < 5; ++run) {
    std::atomic<int64_t> wrong{0};
    ASSERT_TRUE(runner.run(useStreams, &wrong)) << runner.error;
    EXPECT_EQ(wrong, 0);
  }
}

TEST(Streams, HaveRowsInTheTrace) {
  Runner runner(3);
  runner.options.trace = std::make_shared<Trace>();
  std::atomic<int64_t> wrong{0};
  ASSERT_TRUE(runner.run(useStreams, &wrong)) << runner.error;
  std::vector<const Trace::Row *> rows = runner.options.trace->getRows();
  ASSERT_EQ(rows.size(), 9u);
  for (const Trace::Row *row : rows) {
    int64_t collectives = 0, waits = 0, last = 0;
    for (const TraceEvent &event : row->events) {
      collectives += event.kind == TraceKind::Collective;
      waits += event.kind == TraceKind::Wait;
      EXPECT_LE(event.begin, event.end);
      EXPECT_LE(last, event.begin);
      last = event.end;
    }
    EXPECT_EQ(collectives, row->stream == 0 ? 20 : 80);
    EXPECT_EQ(waits, row->stream == 0 ? 160 : 0);
  }
}

/// Rows of 6 experts on 3 ranks: of one float, in room for 60.
template <typename Call> Call describeRows(int64_t kind) {
  Call call = {};
  call.call.kind = kind;
  mw_rt_moved_rows &what = call.what;
  what.group.kind = MW_RT_ALL_TO_ALL;
  what.group.group.count = 1;
  what.group.group.axes[0] = {1, 3};
  what.dtype = MW_F32;
  what.inner = 1;
  what.experts = 6;
  what.own = 2;
  what.from_capacity = what.to_capacity = 60;
  what.layer = what.routing = -1;
  return call;
}

/// Rows go to the ranks of their experts and back on one stream, beside sums on another one. Each round has
/// other numbers of rows, which come by the order of experts, then of ranks.
int32_t moveRows(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                 const void *const *, const void **) {
  static const auto send = describeRows<mw_rt_send_rows>(MW_RT_CALL_SEND_ROWS);
  static const auto back = describeRows<mw_rt_return_rows>(MW_RT_CALL_RETURN_ROWS);
  static const auto index = [] {
    mw_rt_axis_index what = {};
    what.call.kind = MW_RT_CALL_AXIS_INDEX;
    what.axes = send.what.group.group;
    what.dtype = MW_I64;
    what.chunk = 1;
    return what;
  }();
  auto &wrong = argumentOf<std::atomic<int64_t>>(arguments);
  int64_t rank = 0;
  void *number[] = {&rank};
  if (int32_t status = mw_rt_perform(context, 0, &index.call, number))
    return status;
  std::vector<float> in(kLong, 1), out(kLong);
  const void *inputs[] = {in.data()};
  void *outputs[] = {out.data()};
  for (int64_t round = 0; round < 30; ++round) {
    auto countRows = [&](int64_t from, int64_t expert) { return (round * from + expert) % 5; };
    std::vector<float> rows(60, -1), sent(60), returned(60);
    std::vector<int64_t> offsets(7), parts(7), own(3);
    for (int64_t expert = 0; expert < 6; ++expert) {
      offsets[expert + 1] = offsets[expert] + countRows(rank, expert);
      std::fill(rows.begin() + offsets[expert], rows.begin() + offsets[expert + 1], float(10 * rank + expert));
    }
    void *there[] = {rows.data(), offsets.data(), sent.data(), parts.data(), own.data()};
    void *home[] = {sent.data(), parts.data(), offsets.data(), returned.data()};
    if (mw_rt_start(context, 1, &longSum, 2, 0, inputs, outputs) ||
        mw_rt_start_call(context, 2, &send.call, 1, 1, there) || mw_rt_wait(context, 2, 1) ||
        mw_rt_start_call(context, 3, &back.call, 1, 1, home) || mw_rt_wait(context, 1, 0) ||
        mw_rt_wait(context, 3, 1))
      return 1;
    std::vector<float> want;
    for (int64_t expert = 2 * rank; expert < 2 * rank + 2; ++expert)
      for (int64_t from = 0; from < 3; ++from)
        want.insert(want.end(), countRows(from, expert), float(10 * from + expert));
    wrong += own.back() != int64_t(want.size()) || out.front() != 3;
    want.resize(60);
    std::fill(rows.begin() + offsets.back(), rows.end(), 0);
    wrong += sent != want || returned != rows;
  }
  return 0;
}

TEST(Streams, HaveCallsInWhichRanksMeet) {
  Runner runner(3);
  std::atomic<int64_t> wrong{0};
  ASSERT_TRUE(runner.run(moveRows, &wrong)) << runner.error;
  EXPECT_EQ(wrong, 0);
}

int32_t startAlone(mw_rt_context *context, char *, const void *const *, const void *const *,
                   const void *const *, const void **) {
  mw_rt_axis_index what = {};
  what.call.kind = MW_RT_CALL_AXIS_INDEX;
  int64_t rank = 0;
  void *number[] = {&rank};
  return mw_rt_start_call(context, 0, &what.call, 1, 0, number);
}

TEST(Streams, HaveNoOtherCalls) {
  Runner runner(1);
  EXPECT_FALSE(runner.run(startAlone, nullptr));
  EXPECT_NE(runner.error.find("expected to start a call in which ranks meet, got one of kind"), std::string::npos)
      << runner.error;
}

/// As the system gives them.
struct Scheduling {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t slice, deadline, period;
};

/// How the threads of all streams are scheduled.
std::vector<Scheduling> getStreamScheduling() {
  std::vector<Scheduling> all;
  for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    Scheduling theirs = {};
    if (name.rfind("mw ", 0) == 0 && name.find(" stream") != std::string::npos &&
        syscall(SYS_sched_getattr, std::stoi(entry.path().filename()), &theirs, sizeof(theirs),
                0) == 0)
      all.push_back(theirs);
  }
  return all;
}

TEST(Streams, WakePromptlyAtNoHigherPriority) {
  Runner runner(3);
  std::atomic<int64_t> wrong{0};
  ASSERT_TRUE(runner.run(useStreams, &wrong)) << runner.error;
  Scheduling mine = {};
  ASSERT_EQ(syscall(SYS_sched_getattr, 0, &mine, sizeof(mine), 0), 0);
  // A rank's thread may have done all of a stream's work before the stream's has begun,
  // and those of earlier worlds go a moment after they were joined. Systems without
  // slices of threads say 0.
  std::vector<Scheduling> streams;
  auto isReady = [&] {
    streams = getStreamScheduling();
    return streams.size() == 6 &&
           std::all_of(streams.begin(), streams.end(),
                       [&](const Scheduling &it) { return !mine.slice || it.slice < mine.slice; });
  };
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!isReady() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(streams.size(), 6u);
  for (const Scheduling &theirs : streams) {
    EXPECT_EQ(theirs.policy, mine.policy);
    EXPECT_EQ(theirs.nice, mine.nice);
    if (mine.slice)
      EXPECT_LT(theirs.slice, mine.slice);
  }
}

/// Sums on stream 1, of one rank, that no op waits for.
struct Sums {
  mw_rt_context *context;
  std::vector<float> in = std::vector<float>(kLong), out[2] = {in, in};

  int32_t start(int64_t op, int64_t ticket) {
    const void *inputs[] = {in.data()};
    void *outputs[] = {out[ticket].data()};
    return mw_rt_start(context, op, &longSum, 1, ticket, inputs, outputs);
  }
  int32_t wait(int64_t op, int64_t ticket) { return mw_rt_wait(context, op, ticket); }
};

struct PositionTest {
  World &world;
  std::atomic<int64_t> order{0};
  std::atomic<bool> started{false};

  bool isSomebodyAt(int64_t op) {
    bool found = false;
    for (int64_t rank = 0; rank < 3; ++rank)
      found |= world.getPosition(rank) == op;
    return found;
  }
};

/// The first to come starts two collectives and waits for the second; the others come to
/// each when they have seen it there.
int32_t waitForTheSecond(mw_rt_context *context, char *, const void *const *arguments,
                         const void *const *, const void *const *, const void **) {
  auto &test = argumentOf<PositionTest>(arguments);
  bool isFirst = test.order++ == 0;
  Sums sums{context};
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int64_t i : {0, 1}) {
    while (!isFirst && !(test.started && test.isSomebodyAt(i)))
      if (std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
      else
        return 1;
    if (int32_t status = sums.start(i, i))
      return status;
  }
  test.started = true;
  return sums.wait(2, 1);
}

TEST(Streams, WhoWaitsIsWhereTheStreamIs) {
  Runner runner(3);
  PositionTest test{*runner.world};
  EXPECT_TRUE(runner.run(waitForTheSecond, &test)) << runner.error;
}

/// Rank 1 fails while the others are in collectives of two streams.
int32_t failOnOne(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                  const void *const *, const void **) {
  std::vector<float> in(kLong), out(kLong);
  const void *inputs[] = {in.data()};
  void *outputs[] = {out.data()};
  int64_t rank = argumentOf<std::atomic<int64_t>>(arguments)++;
  if (rank == 1)
    return mw_rt_wait(context, 2, 17);
  for (int64_t i = 0; i < 4; ++i)
    if (int32_t status = mw_rt_start(context, 1, &longSum, 1 + i % 2, i, inputs, outputs))
      return status;
  return mw_rt_wait(context, 2, 3);
}

TEST(Streams, AFailureEndsWhatIsOnItsWay) {
  Runner runner(3);
  std::atomic<int64_t> order{0};
  runner.options.timeout = 1000;
  EXPECT_FALSE(runner.run(failOnOne, &order));
  EXPECT_NE(runner.error.find("third: waits for ticket 17, which was not started"),
            std::string::npos)
      << runner.error;
  EXPECT_FALSE(runner.world->isStuck());
  // And harms no later run.
  std::atomic<int64_t> wrong{0};
  ASSERT_TRUE(runner.run(useStreams, &wrong)) << runner.error;
  EXPECT_EQ(wrong, 0);
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

std::atomic<bool> stalled{false}, released{false};

/// In a kernel that does not end until it is let go.
int32_t stall(mw_rt_context *context) {
  mw_rt_launch launch = {};
  launch.items = 1;
  void *none[] = {nullptr};
  mw_rt_kernel wait = [](void *const *, int64_t, int64_t, void *) {
    stalled = true;
    while (!released)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  return mw_rt_run_kernel(context, 1, &launch, wait, none);
}

/// The first to come never comes back; the others go to meet it.
int32_t stallOne(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                 const void *const *, const void **) {
  if (argumentOf<std::atomic<int64_t>>(arguments)++ == 0)
    return stall(context);
  while (!stalled)
    std::this_thread::yield();
  std::vector<float> in(kLong), out(kLong);
  const void *inputs[] = {in.data()};
  void *outputs[] = {out.data()};
  return mw_rt_run_collective(context, 0, &longSum, inputs, outputs);
}

TEST(Faults, ARankThatIsStuck) {
  stalled = released = false;
  Runner runner(3);
  runner.options.timeout = 1;
  std::atomic<int64_t> order{0};
  auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(runner.run(stallOne, &order));
  // Less than the timeout that there is without one.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
  EXPECT_NE(runner.error.find("first: timed out after 1 s waiting for rank"), std::string::npos)
      << runner.error;
  EXPECT_NE(runner.error.find("(at second)"), std::string::npos) << runner.error;
  EXPECT_TRUE(runner.world->isStuck());
  EXPECT_FALSE(runner.run(stallOne, &order));
  EXPECT_NE(runner.error.find("is still in second of a run that failed"), std::string::npos)
      << runner.error;
  released = true;
  while (runner.world->isStuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// The others come to what the first one has started, whose stream goes on without it, and
/// then miss it.
int32_t stallBesideAStream(mw_rt_context *context, char *, const void *const *arguments,
                           const void *const *, const void *const *, const void **) {
  bool isFirst = argumentOf<std::atomic<int64_t>>(arguments)++ == 0;
  Sums sums{context};
  while (!isFirst && !stalled)
    std::this_thread::yield();
  for (int64_t ticket : {0, 1})
    if (int32_t status = sums.start(0, ticket))
      return status;
  if (isFirst)
    return stall(context);
  for (int64_t ticket : {0, 1})
    if (int32_t status = sums.wait(0, ticket))
      return status;
  const void *inputs[] = {sums.in.data()};
  void *outputs[] = {sums.out[0].data()};
  return mw_rt_run_collective(context, 2, &longSum, inputs, outputs);
}

TEST(Faults, ARankThatIsStuckBesideAStream) {
  stalled = released = false;
  Runner runner(3);
  // Time enough for ranks that the machine keeps waiting.
  runner.options.timeout = 3;
  std::atomic<int64_t> order{0};
  EXPECT_FALSE(runner.run(stallBesideAStream, &order));
  EXPECT_NE(runner.error.find("third: timed out after 3 s waiting for rank"), std::string::npos)
      << runner.error;
  EXPECT_NE(runner.error.find("(at second)"), std::string::npos) << runner.error;
  released = true;
  while (runner.world->isStuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int32_t stallAlone(mw_rt_context *context, char *, const void *const *arguments,
                   const void *const *, const void *const *, const void **) {
  return argumentOf<std::atomic<int64_t>>(arguments)++ == 0 ? stall(context) : 0;
}

TEST(Faults, ARankThatIsStuckBehindTheLastCollective) {
  stalled = released = false;
  Runner runner(2);
  runner.options.timeout = 0.2;
  std::atomic<int64_t> order{0};
  EXPECT_FALSE(runner.run(stallAlone, &order));
  EXPECT_NE(runner.error.find("second: does not end: other ranks have ended"), std::string::npos)
      << runner.error;
  released = true;
  while (runner.world->isStuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int32_t makeNotFinite(mw_rt_context *context, char *, const void *const *arguments,
                      const void *const *, const void *const *, const void **) {
  mw_rt_launch launch = {};
  launch.items = 1;
  launch.num_outputs = 1;
  launch.outputs[0].dtype = MW_F32;
  launch.outputs[0].count = 3000;
  std::vector<float> values(3000, 1);
  void *buffers[] = {values.data()};
  mw_rt_kernel nothing = [](void *const *, int64_t, int64_t, void *) {};
  mw_rt_kernel infinite = [](void *const *buffers, int64_t, int64_t, void *) {
    static_cast<float *>(buffers[0])[2500] = -INFINITY;
  };
  mw_rt_kernel undefined = [](void *const *buffers, int64_t, int64_t, void *) {
    static_cast<float *>(buffers[0])[2501] = NAN;
  };
  // One rank sees it one op later than the others.
  bool late = argumentOf<std::atomic<int64_t>>(arguments)++ == 0;
  if (int32_t status = mw_rt_run_kernel(context, 0, &launch, nothing, buffers))
    return status;
  if (int32_t status = mw_rt_run_kernel(context, 1, &launch, late ? nothing : infinite, buffers))
    return status;
  return mw_rt_run_kernel(context, 2, &launch, undefined, buffers);
}

TEST(Faults, TheFirstOpThatIsNotFinite) {
  for (int64_t run = 0; run < 10; ++run) {
    Runner runner(3);
    runner.options.checkFinite = true;
    std::atomic<int64_t> order{0};
    EXPECT_FALSE(runner.run(makeNotFinite, &order));
    EXPECT_NE(runner.error.find(": second: is -infinity at element 2500 of result 0"),
              std::string::npos)
        << runner.error;
    runner.options.checkFinite = false;
    EXPECT_TRUE(runner.run(makeNotFinite, &order)) << runner.error;
  }
}

} // namespace

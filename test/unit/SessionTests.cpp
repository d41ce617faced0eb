//===- SessionTests.cpp - state that outlives a call ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/SafeTensors.h"
#include "meshwright/runtime/include/Session.h"
#include "meshwright/runtime/src/bundle/Manifest.h"
#include "meshwright/runtime/src/session/Checkpoint.h"

#include "gtest/gtest.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <unistd.h>

using namespace meshwright::rt;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

mw_rt_axes getAxes(int64_t ranks) {
  mw_rt_axes axes = {};
  if (ranks > 1) {
    axes.count = 1;
    axes.axes[0] = {1, ranks};
  }
  return axes;
}

ProgramValue describeVector(const std::string &name, int64_t size, int64_t shards,
                            DType type = DType::F32) {
  ProgramValue value;
  value.name = name;
  value.type = type;
  value.shape = {size};
  int64_t part = (size + shards - 1) / shards;
  value.localShape = {part};
  value.layout.dims = {{{size, part * shards, getAxes(shards)}}};
  return value;
}

enum Behaviour { Normal, Failing, NotFinite, Stuck };
std::atomic<int> behaviour{Normal};
std::atomic<bool> isReleased{false};

/// The world of the session under test, by which an entry fails.
World *world = nullptr;

int32_t misbehave(mw_rt_context *context, const void *const *arguments) {
  // The input of rank 1 is its part of a vector: 3, 4 or so.
  bool isSecond = *static_cast<const float *>(arguments[0]) >= 3;
  if (behaviour == Failing && isSecond) {
    world->fail(1, 0, "it broke");
    return 1;
  }
  if (behaviour == Stuck && isSecond) {
    world->fail(1, 0, "it hangs");
    while (!isReleased)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return 1;
  }
  if (behaviour != NotFinite)
    return 0;
  mw_rt_launch launch = {};
  launch.items = launch.grain = launch.num_outputs = 1;
  launch.outputs[0] = {MW_F32, 1};
  mw_rt_kernel divide = [](void *const *buffers, int64_t, int64_t, void *) {
    *static_cast<float *>(buffers[0]) = NAN;
  };
  float value;
  void *buffers[] = {&value};
  return mw_rt_run_kernel(context, 0, &launch, divide, buffers);
}

/// Each rank has a part of two elements. sum += x, and calls += 1; the output is the old sum.
int32_t add(mw_rt_context *context, char *arena, const void *const *arguments, const void *const *,
            const void *const *, const void **results) {
  auto *x = static_cast<const float *>(arguments[0]);
  auto *sum = static_cast<const float *>(arguments[1]);
  auto *calls = static_cast<const int64_t *>(arguments[2]);
  auto *newSum = reinterpret_cast<float *>(arena);
  for (int i = 0; i < 2; ++i)
    newSum[i] = sum[i] + x[i];
  *reinterpret_cast<int64_t *>(arena + 64) = *calls + 1;
  results[0] = sum;
  results[1] = newSum;
  results[2] = arena + 64;
  return misbehave(context, arguments);
}

/// Swaps sum and other.
int32_t swap(mw_rt_context *, char *, const void *const *arguments, const void *const *,
             const void *const *, const void **results) {
  results[0] = arguments[1];
  results[1] = arguments[0];
  return 0;
}

/// States of `size` elements: "sum" begins with the parameter "start", "other" with sevens,
/// "calls" with zero.
ProgramDescription describeProgram(int64_t size, int64_t ranks) {
  ProgramDescription program;
  program.numRanks = ranks;
  program.parameters = {describeVector("start", size, 1)};
  float seven = 7;
  std::string sevens(reinterpret_cast<const char *>(&seven), 4);
  program.states = {{describeVector("sum", size, ranks), "start", ""},
                    {describeVector("calls", 1, 1, DType::I64), "", std::string(8, '\0')},
                    {describeVector("other", size, ranks), "", sevens}};
  EntryDescription &first = program.entries.emplace_back();
  first.name = "add";
  first.arenaBytes = 128;
  first.ops = {"the op"};
  first.inputs = {describeVector("x", size, ranks)};
  first.outputs = {describeVector("old", size, ranks)};
  first.arguments = {{ProgramArgument::Input, 0},
                     {ProgramArgument::State, 0},
                     {ProgramArgument::State, 1}};
  first.stateResults = {0, 1};
  EntryDescription &second = program.entries.emplace_back();
  second.name = "swap";
  second.arguments = {{ProgramArgument::State, 0}, {ProgramArgument::State, 2}};
  second.stateResults = {0, 2};
  return program;
}

using Floats = std::vector<float>;

struct Counter {
  int64_t size;
  Floats start, x, old;
  std::unique_ptr<Session> session;
  std::string error;

  explicit Counter(int64_t size = 4, int64_t ranks = 2)
      : size(size), start(size), x(size), old(size) {
    for (int64_t i = 0; i < size; ++i) {
      start[i] = float(10 * i);
      x[i] = float(i + 1);
    }
    behaviour = Normal;
    session = Session::create(describeProgram(size, ranks), {add, swap}, nullptr, "local", error);
    if (session && session->setParameter("start", {DType::F32, {size}, start.data()}, error))
      world = &session->getWorld();
  }
  bool run(RunOptions options = {}) {
    return session->run(0, {{DType::F32, {size}, x.data()}}, {old.data()}, options, error);
  }
  bool swapStates() { return session->run(1, {}, {}, {}, error); }

  Floats sum = {}, other = {};
  int64_t calls = -1;
  bool read() {
    sum.assign(size, -1);
    other.assign(size, -1);
    return session->getStates({sum.data(), &calls, other.data()}, error);
  }
  /// The sum after that many calls.
  Floats getExpected(int64_t count) const {
    Floats expected(size);
    for (int64_t i = 0; i < size; ++i)
      expected[i] = start[i] + count * x[i];
    return expected;
  }
};

std::string getFolder(const char *name) {
  return testing::TempDir() + name + std::to_string(getpid());
}

TEST(Session, StateStaysFromCallToCall) {
  // With three elements the last rank has one true element and one of padding.
  for (int64_t size : {4, 3}) {
    Counter test(size);
    ASSERT_TRUE(test.session) << test.error;
    ASSERT_TRUE(test.read()) << test.error;
    EXPECT_EQ(test.sum, test.start);
    EXPECT_EQ(test.other, Floats(size, 7));
    EXPECT_EQ(test.calls, 0);
    for (int64_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(test.run()) << test.error;
      EXPECT_EQ(test.old, test.getExpected(i));
    }
    ASSERT_TRUE(test.read()) << test.error;
    EXPECT_EQ(test.sum, test.getExpected(3));
    EXPECT_EQ(test.calls, 3);
    test.session->restart();
    ASSERT_TRUE(test.run()) << test.error;
    EXPECT_EQ(test.old, test.start);
  }
}

TEST(Session, AResultMayBeAnotherState) {
  Counter test;
  ASSERT_TRUE(test.run() && test.swapStates() && test.read()) << test.error;
  EXPECT_EQ(test.sum, Floats(4, 7));
  EXPECT_EQ(test.other, test.getExpected(1));
  ASSERT_TRUE(test.swapStates() && test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(2));
}

TEST(Session, AFailedCallChangesNothing) {
  Counter test;
  ASSERT_TRUE(test.run()) << test.error;
  for (Behaviour how : {Failing, NotFinite}) {
    behaviour = how;
    RunOptions options;
    options.checkFinite = true;
    EXPECT_FALSE(test.run(options));
    EXPECT_EQ(test.error, how == Failing ? "rank 1: the op: it broke"
                                         : "rank 0: the op: is NaN at element 0 of result 0");
    behaviour = Normal;
    ASSERT_TRUE(test.read()) << test.error;
    EXPECT_EQ(test.sum, test.getExpected(1));
    EXPECT_EQ(test.calls, 1);
  }
  // An error that comes after the run: the file of the trace cannot be written.
  RunOptions traced;
  traced.traceFile = "/nonexistent/trace.json";
  EXPECT_FALSE(test.run(traced));
  // Inputs that do not fit.
  EXPECT_FALSE(test.session->run(0, {{DType::F32, {5}, test.x.data()}}, {test.old.data()}, {},
                                 test.error));
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(2));
}

TEST(Session, RepeatedRunsStartFromOneState) {
  Counter test;
  setenv("MESHWRIGHT_RUNS", "4", 1);
  bool isFine = test.run() && test.run();
  unsetenv("MESHWRIGHT_RUNS");
  ASSERT_TRUE(isFine && test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(2));
  EXPECT_EQ(test.calls, 2);
}

TEST(Session, SetsAllOrNothing) {
  Counter test;
  ASSERT_TRUE(test.run()) << test.error;
  Floats value = {1, 2, 3, 4};
  HostTensor good{DType::F32, {4}, value.data()};
  EXPECT_FALSE(test.session->setStates({{"other", good}, {"total", good}}, test.error));
  EXPECT_EQ(test.error, "the program has no state 'total'");
  HostTensor bad{DType::F32, {2, 2}, value.data()};
  EXPECT_FALSE(test.session->setStates({{"other", good}, {"sum", bad}}, test.error));
  EXPECT_EQ(test.error, "state 'sum': expected f32[4], got f32[2, 2]");
  EXPECT_FALSE(test.session->setStates({{"sum", {DType::I32, {4}, value.data()}}}, test.error));
  ASSERT_TRUE(test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(1));
  EXPECT_EQ(test.other, Floats(4, 7));
  ASSERT_TRUE(test.session->setStates({{"sum", good}}, test.error)) << test.error;
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, (Floats{2, 4, 6, 8}));
  EXPECT_EQ(test.calls, 2);
}

TEST(Session, SavedStatesFitAnyMesh) {
  std::string folder = getFolder("saved");
  Counter test(3, 2);
  ASSERT_TRUE(test.run() && test.run()) << test.error;
  ASSERT_TRUE(test.session->save(folder, test.error)) << test.error;
  ASSERT_TRUE(test.run()) << test.error;
  ASSERT_TRUE(test.session->save(folder, test.error)) << test.error;
  // Two ranks, and one rank whose part is the whole state. The entry takes two elements a rank.
  for (int64_t size : {3}) {
    Counter other(size, 2);
    ASSERT_TRUE(other.session->load(folder, other.error)) << other.error;
    ASSERT_TRUE(other.read()) << other.error;
    EXPECT_EQ(other.sum, test.getExpected(3));
    EXPECT_EQ(other.calls, 3);
  }
  Counter whole(3, 1);
  ASSERT_TRUE(whole.session->load(folder, whole.error) && whole.read()) << whole.error;
  EXPECT_EQ(whole.sum, test.getExpected(3));
  fs::remove_all(folder);
}

TEST(Session, PartsThatAreBoxes) {
  // Four ranks; the second dimension has two factors.
  ProgramValue value;
  value.shape = {5, 6};
  value.localShape = {2, 6};
  value.layout.dims = {{{5, 8, getAxes(4)}}, {{2, 2, {}}, {3, 3, {}}}};
  auto find = [&](int64_t rank) { return findBox(value, rank); };
  ASSERT_TRUE(find(2));
  EXPECT_EQ(find(2)->offset, (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(find(2)->shape, (std::vector<int64_t>{1, 6}));
  EXPECT_EQ(find(3)->shape, (std::vector<int64_t>{0, 6}));
  value.layout.dims[1] = {{2, 4, getAxes(4)}, {3, 3, {}}};
  ASSERT_TRUE(find(1));
  EXPECT_EQ(find(1)->offset, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(find(1)->shape, (std::vector<int64_t>{2, 3}));
  // Rows that are not consecutive, another order, and summands.
  value.layout.dims[1] = {{2, 2, {}}, {3, 4, getAxes(4)}};
  EXPECT_FALSE(find(0));
  value.layout.dims[1] = {{2, 2, {}}, {3, 4, {}}};
  EXPECT_FALSE(find(0));
  value.layout.dims[1] = {{6, 6, {}}};
  EXPECT_TRUE(find(0));
  value.layout.dims[0] = {{8, 8, getAxes(2), meshwright::TokenOrder::Striped, 2}};
  EXPECT_FALSE(find(0));
  value.layout.dims[0] = {{5, 5, {}}};
  value.unreduced = getAxes(2);
  EXPECT_FALSE(find(0));
}

TEST(Session, SavedStatesInAnOrderOfTokens) {
  std::string folder = getFolder("order"), error;
  Floats start = {0, 1, 2, 3, 4, 5, 6, 7}, sum(8), other(8);
  int64_t calls = 5;
  auto create = [&](meshwright::TokenOrder order) {
    ProgramDescription description = describeProgram(8, 2);
    for (ProgramState &state : description.states)
      if (state.value.name == "sum") {
        state.value.layout.dims[0][0].order = order;
        state.value.layout.dims[0][0].orderRanks = 2;
      }
    auto session =
        Session::create(std::move(description), {add, swap}, nullptr, "local", error);
    EXPECT_TRUE(session && session->setParameter("start", {DType::F32, {8}, start.data()}, error));
    return session;
  };
  using meshwright::TokenOrder;
  for (auto [from, to] : {std::pair(TokenOrder::Zigzag, TokenOrder::Contiguous),
                          {TokenOrder::Contiguous, TokenOrder::Striped},
                          {TokenOrder::Striped, TokenOrder::Striped}}) {
    auto session = create(from), next = create(to);
    ASSERT_TRUE(session->setStates({{"calls", {DType::I64, {1}, &calls}}}, error)) << error;
    ASSERT_TRUE(session->save(folder, error)) << error;
    start[0] += 1;
    ASSERT_TRUE(next->load(folder, error)) << error;
    int64_t read = 0;
    ASSERT_TRUE(next->getStates({sum.data(), &read, other.data()}, error)) << error;
    start[0] -= 1;
    EXPECT_EQ(sum, start);
    EXPECT_EQ(read, 5);
  }
  fs::remove_all(folder);
}

TEST(Session, SavedStatesThatDoNotFit) {
  std::string folder = getFolder("unfit"), index = folder + "/" + kStateIndex;
  Counter test;
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_FALSE(test.session->load(folder, test.error));
  EXPECT_EQ(test.error, folder + ": no saved state: it has no checkpoint.json");
  EXPECT_FALSE(test.session->save("/nonexistent/folder", test.error));
  EXPECT_EQ(test.error, "/nonexistent/folder: cannot be created: No such file or directory");

  // Each file, cut off by a byte.
  ASSERT_TRUE(test.session->save(folder, test.error)) << test.error;
  std::vector<std::string> files;
  for (const auto &entry : fs::directory_iterator(folder))
    files.push_back(entry.path());
  EXPECT_GE(files.size(), 2u);
  for (const std::string &file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::string whole{std::istreambuf_iterator<char>(stream), {}};
    fs::resize_file(file, fs::file_size(file) - 2);
    EXPECT_FALSE(test.session->load(folder, test.error));
    EXPECT_EQ(test.error.rfind(file + ": ", 0), 0u) << test.error;
    std::ofstream(file, std::ios::binary) << whole;
  }
  ASSERT_TRUE(test.session->load(folder, test.error)) << test.error;

  // An index that names files elsewhere, and one of another version.
  std::ifstream stream(index);
  Json saved = Json::parse(stream);
  auto load = [&](Json changed) {
    changed.erase("hash");
    std::string text = changed.dump();
    changed["hash"] = hashOf(text.data(), text.size());
    std::ofstream(index) << changed.dump();
    EXPECT_FALSE(test.session->load(folder, test.error));
    return test.error.substr(index.size());
  };
  Json changed = saved;
  changed["version"] = 2;
  EXPECT_EQ(load(changed), ": expected version 1, which this runtime reads, got 2");
  changed = saved;
  changed["states"]["sum"]["parts"][0]["file"] = "../other";
  EXPECT_EQ(load(changed), ": names the file '../other': expected one in its folder");
  changed = saved;
  changed["states"]["sum"]["parts"][0]["offset"][0] = 9;
  EXPECT_EQ(load(changed), ": a part of state 'sum' is beyond the state");
  changed = saved;
  changed["states"]["sum"]["parts"].erase(0);
  EXPECT_EQ(load(changed), ": parts of state 'sum' are missing");
  changed = saved;
  changed["states"]["sum"].erase("shape");
  EXPECT_EQ(load(changed).rfind(": damaged: ", 0), 0u) << test.error;
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(2));
  fs::remove_all(folder);
}

TEST(Session, AStuckRankEndsCallsButNotTheState) {
  Counter test;
  ASSERT_TRUE(test.run()) << test.error;
  behaviour = Stuck;
  isReleased = false;
  RunOptions options;
  options.timeout = 0.2;
  EXPECT_FALSE(test.run(options));
  EXPECT_EQ(test.error, "rank 1: the op: it hangs");
  ASSERT_TRUE(test.session->getWorld().isStuck());
  EXPECT_FALSE(test.run());
  EXPECT_NE(test.error.find("rank 1 is still in"), std::string::npos) << test.error;
  Floats value = {1, 2, 3, 4};
  EXPECT_FALSE(test.session->setStates({{"sum", {DType::F32, {4}, value.data()}}}, test.error));
  ASSERT_TRUE(test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(1));
  behaviour = Normal;
  isReleased = true;
  while (test.session->getWorld().isStuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, test.getExpected(2));
}

/// Puts a number into the first element of the rank's part of "sum", and 3 into all of "other", which
/// it writes where the caller says.
int32_t put(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
            const void *const *, const void **results) {
  static const mw_rt_replace_rows what = [] {
    mw_rt_replace_rows what = {};
    what.call.kind = MW_RT_CALL_REPLACE_ROWS;
    what.rows.dtype = MW_F32;
    what.rows.index_dtype = MW_I64;
    what.rows.outer = what.rows.inner = what.rows.count = 1;
    what.rows.size = 2;
    what.offset = 64;
    return what;
  }();
  static int64_t index = 0;
  void *buffers[] = {const_cast<void *>(arguments[1]), &index, const_cast<void *>(arguments[0]),
                     const_cast<void *>(results[0])};
  if (int32_t status = mw_rt_perform(context, 0, &what.call, buffers))
    return status;
  results[0] = arguments[1];
  auto *other = static_cast<float *>(const_cast<void *>(results[1]));
  other[0] = other[1] = 3;
  return misbehave(context, arguments);
}

/// A session of `put`.
struct Putter {
  std::unique_ptr<Session> session;
  Floats start = {0, 10, 20, 30}, x = {1, 2, 3, 4}, sum = Floats(4), other = Floats(4);
  std::string error;

  Putter() {
    ProgramDescription program = describeProgram(4, 2);
    program.entries.pop_back();
    EntryDescription &entry = program.entries.front();
    entry.outputs.clear();
    entry.arguments = {{ProgramArgument::Input, 0}, {ProgramArgument::State, 0}};
    entry.stateResults = {0, 2};
    entry.updates = {{StateUpdate::Rows, 192}, {StateUpdate::Whole}};
    behaviour = Normal;
    session = Session::create(program, {put}, nullptr, "local", error);
    if (session && session->setParameter("start", {DType::F32, {4}, start.data()}, error))
      world = &session->getWorld();
  }
  bool run(RunOptions options = {}) {
    return session->run(0, {{DType::F32, {4}, x.data()}}, {}, options, error);
  }
  bool read() {
    int64_t calls;
    return session->getStates({sum.data(), &calls, other.data()}, error);
  }
};

const Floats kSevens(4, 7), kThrees(4, 3), kPut = {1, 10, 3, 30};

TEST(Session, ReplacedRowsAreRestored) {
  Putter test;
  ASSERT_TRUE(test.session) << test.error;
  RunOptions check;
  check.checkFinite = true;
  for (Behaviour bad : {Failing, NotFinite}) {
    behaviour = bad;
    EXPECT_FALSE(test.run(check));
    ASSERT_TRUE(test.read()) << test.error;
    EXPECT_EQ(test.sum, test.start);
    EXPECT_EQ(test.other, kSevens);
  }
  // A rank that does not come back may write the state.
  behaviour = Stuck;
  isReleased = false;
  RunOptions options;
  options.timeout = 0.2;
  EXPECT_FALSE(test.run(options));
  EXPECT_EQ(test.error, "rank 1: the op: it hangs");
  ASSERT_TRUE(test.session->getWorld().isStuck());
  for (bool isRead : {true, false}) {
    EXPECT_FALSE(isRead ? test.read() : test.run());
    EXPECT_NE(test.error.find("a rank has not come back"), std::string::npos) << test.error;
  }
  behaviour = Normal;
  isReleased = true;
  while (test.session->getWorld().isStuck())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(test.read()) << test.error;
  EXPECT_EQ(test.sum, test.start);
  EXPECT_EQ(test.other, kSevens);
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, kPut);
  EXPECT_EQ(test.other, kThrees);
}

TEST(Session, WithoutRecovery) {
  Putter test;
  ASSERT_TRUE(test.session) << test.error;
  test.session->setRecovery(false);
  behaviour = Failing;
  EXPECT_FALSE(test.run());
  ASSERT_TRUE(test.read()) << test.error;
  // Rank 0 may end before it writes its part.
  EXPECT_EQ(test.sum[2], 3);
  EXPECT_EQ(test.other[3], 3);
  behaviour = Normal;
  ASSERT_TRUE(test.run() && test.read()) << test.error;
  EXPECT_EQ(test.sum, kPut);
}

/// The rank's partial sum of two elements grows by one.
int32_t addOne(mw_rt_context *, char *arena, const void *const *arguments, const void *const *,
               const void *const *, const void **results) {
  auto *sum = static_cast<const float *>(arguments[0]);
  for (int i = 0; i < 2; ++i)
    reinterpret_cast<float *>(arena)[i] = sum[i] + 1;
  results[0] = arena;
  return 0;
}

TEST(Session, AStateMayBeAPartialSum) {
  // Four ranks: two parts of the vector, each the sum over two ranks.
  ProgramDescription program;
  program.numRanks = 4;
  float seven = 7;
  program.states = {{describeVector("sum", 4, 2), "",
                     std::string(reinterpret_cast<const char *>(&seven), 4)}};
  program.states[0].value.unreduced.count = 1;
  program.states[0].value.unreduced.axes[0] = {2, 2};
  EntryDescription &entry = program.entries.emplace_back();
  entry.arenaBytes = 64;
  entry.arguments = {{ProgramArgument::State, 0}};
  entry.stateResults = {0};
  std::string error;
  auto session = Session::create(program, {addOne}, nullptr, "local", error);
  ASSERT_TRUE(session) << error;
  Floats sum(4);
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(session->run(0, {}, {}, {}, error)) << error;
  ASSERT_TRUE(session->getStates({sum.data()}, error)) << error;
  EXPECT_EQ(sum, Floats(4, 7 + 3 * 2));
  ASSERT_TRUE(session->setStates({{"sum", {DType::F32, {4}, sum.data()}}}, error)) << error;
  ASSERT_TRUE(session->run(0, {}, {}, {}, error) && session->getStates({sum.data()}, error));
  EXPECT_EQ(sum, Floats(4, 15));
}

TEST(Session, ThreadsShareIt) {
  Counter test;
  std::atomic<int> failures{0};
  auto work = [&](int kind) {
    std::string error;
    Floats old(4), sum(4), other(4);
    int64_t calls = 0;
    for (int i = 0; i < 50; ++i) {
      bool isFine = kind == 0 ? test.session->run(0, {{DType::F32, {4}, test.x.data()}},
                                                  {old.data()}, {}, error)
                    : kind == 1
                        ? test.session->getStates({sum.data(), &calls, other.data()}, error)
                        : test.session->setStates({{"other", {DType::F32, {4}, old.data()}}},
                                                  error);
      failures += !isFine;
      // The sum and the number of calls belong to one state.
      failures += kind == 1 && sum != test.getExpected(calls);
    }
  };
  std::vector<std::thread> threads;
  for (int kind : {0, 1, 2, 0})
    threads.emplace_back(work, kind);
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(failures, 0);
  ASSERT_TRUE(test.read()) << test.error;
  EXPECT_EQ(test.calls, 100);
}

TEST(Session, DescriptionsThatAreWrong) {
  std::string error;
  auto create = [&](const ProgramDescription &program) {
    EXPECT_FALSE(Session::create(program, {add, swap}, nullptr, "local", error));
    std::string said;
    return std::exchange(error, "");
  };
  ProgramDescription program = describeProgram(4, 2);
  program.entries[1].stateResults = {0, 0};
  EXPECT_EQ(create(program), "entry 'swap' writes state 'sum' twice: expected at most once");
  program = describeProgram(4, 2);
  program.states[0].parameter = "begin";
  EXPECT_EQ(create(program),
            "state 'sum' begins with parameter 'begin', which the program does not have");
  program = describeProgram(4, 2);
  program.states[1].fill = "1";
  EXPECT_EQ(create(program), "state 'calls': expected to begin with elements of 8 bytes, got 1");
  program = describeProgram(4, 2);
  program.parameters[0] = describeVector("start", 5, 1);
  EXPECT_EQ(create(program), "state 'sum': expected f32[5], that of parameter 'start', got f32[4]");
  EXPECT_EQ(describeProgram(4, 2).findEntry("train", error), -1);
  EXPECT_EQ(error, "the program has no entry 'train': expected one of 'add', 'swap'");
}

/// The bytes of memory of this process that are in use.
int64_t getMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("RssAnon:", 0) == 0)
      return std::atoll(line.c_str() + 8) * 1024;
  return 0;
}

TEST(Session, ManyCallsDoNotGrowMemory) {
  // Sanitizers keep freed memory.
  if (std::getenv("MESHWRIGHT_SANITIZER"))
    GTEST_SKIP();
  Counter test;
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(test.run() && test.swapStates() && test.swapStates() && test.read()) << test.error;
  int64_t before = getMemory();
  for (int i = 0; i < 10'000; ++i)
    ASSERT_TRUE(test.run() && (i % 10 || test.read())) << test.error;
  EXPECT_LT(getMemory() - before, 1 << 20);
  ASSERT_TRUE(test.read()) << test.error;
  EXPECT_EQ(test.calls, 10'500);
}

} // namespace

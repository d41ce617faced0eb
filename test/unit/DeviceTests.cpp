//===- DeviceTests.cpp - programs on a device with its own memory ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `SeparateDevice` is a device whose memory the host can touch only in the device's own
// calls: between them its pages are protected, and an access ends the test. So these tests
// show that the runtime goes through `Device` for all that a rank holds.
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/Session.h"

#include "gtest/gtest.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <sys/mman.h>
#include <unistd.h>

using namespace meshwright::rt;

namespace {

constexpr int64_t kRanks = 2;

/// Calls of all devices of this process.
std::atomic<int64_t> launches{0}, copiesIn{0}, copiesOut{0}, copies{0}, synchronizations{0};
/// Copies until one fails; negative: none does. Copies behind it fail, too.
std::atomic<int64_t> copiesToFailure{-1};
/// True if the next synchronisation of any device runs into its deadline.
std::atomic<bool> isBusy{false};
/// The kind of the calls that no device performs, or -1.
std::atomic<int64_t> lacking{-1};

class SeparateDevice : public Device {
  /// Makes the device's memory accessible during a call.
  template <typename Body> auto open(Body body) {
    protect(PROT_READ | PROT_WRITE);
    auto result = body();
    protect(PROT_NONE);
    return result;
  }

public:
  explicit SeparateDevice(std::unique_ptr<Device> inner) : inner(std::move(inner)) {}

  bool sharesHostMemory() const override { return false; }
  DeviceMemory allocate(int64_t bytes) override {
    size_t page = sysconf(_SC_PAGESIZE), size = (bytes + page) / page * page;
    void *data = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      return nullptr;
    (*pages)[data] = size;
    return DeviceMemory(static_cast<char *>(data), [pages = pages](char *data) {
      munmap(data, (*pages)[data]);
      pages->erase(data);
    });
  }
  bool copyIn(void *device, const void *host, int64_t bytes, std::string &) override {
    ++copiesIn;
    return open([&] { return std::memcpy(device, host, bytes) != nullptr; });
  }
  bool copyOut(void *host, const void *device, int64_t bytes, std::string &) override {
    ++copiesOut;
    return open([&] { return std::memcpy(host, device, bytes) != nullptr; });
  }

  bool copy(void *to, const void *from, int64_t bytes, std::string &error) override {
    ++copies;
    if (copiesToFailure == 0) {
      error = "the device does not work";
      return false;
    }
    copiesToFailure -= copiesToFailure > 0;
    return open([&] { return std::memcpy(to, from, bytes) != nullptr; });
  }

  void prepare(const HostThreads &threads) override { inner->prepare(threads); }
  void enterThread() override { inner->enterThread(); }
  bool synchronize(std::chrono::steady_clock::time_point deadline) override {
    ++synchronizations;
    return !isBusy.exchange(false) && inner->synchronize(deadline);
  }

  bool launch(const mw_rt_launch &what, mw_rt_kernel kernel, void *const *buffers,
              std::string &error) override {
    ++launches;
    return open([&] { return inner->launch(what, kernel, buffers, error); });
  }
  const char *getName() const override { return "separate"; }
  bool performs(int64_t kind) const override { return kind != lacking && inner->performs(kind); }
  bool perform(const Caller &caller, const mw_rt_call &what, void *const *buffers,
               std::string &error) override {
    return open([&] { return inner->perform(caller, what, buffers, error); });
  }
  bool undo(const mw_rt_call &what, void *const *buffers, std::string &error) override {
    return open([&] { return inner->undo(what, buffers, error); });
  }
  bool checkFinite(const Caller &caller, int64_t result, int64_t dtype, const void *data,
                   int64_t count, const ExistingRows &existing, std::string &error) override {
    return open([&] { return inner->checkFinite(caller, result, dtype, data, count, existing, error); });
  }
  bool runCollective(const Caller &caller, const mw_rt_collective &what, const void *const *inputs,
                     void *const *outputs, std::string &error) override {
    return open([&] { return inner->runCollective(caller, what, inputs, outputs, error); });
  }
  bool start(const Caller &, const mw_rt_collective &, int64_t, const void *const *, void *const *,
             std::string &error) override {
    error = "this device has one stream";
    return false;
  }
  bool start(const Caller &, const mw_rt_call &, int64_t, void *const *, std::string &error) override {
    error = "this device has one stream";
    return false;
  }
  bool wait(int64_t, std::string &) override { return false; }

private:
  void protect(int access) {
    for (auto [data, size] : *pages)
      mprotect(data, size, access);
  }

  std::unique_ptr<Device> inner;
  /// By address. Memory that outlives the device shares it.
  std::shared_ptr<std::map<void *, size_t>> pages = std::make_shared<std::map<void *, size_t>>();
};

/// The failures that a process told the others.
std::vector<std::string> told;

/// Ranks that never communicate. They are threads of this process, or all but the last are in
/// other processes.
class SeparateBackend : public Backend, public HostCollectives {
public:
  explicit SeparateBackend(bool isSplit) : isSplit(isSplit) {}

  std::vector<int64_t> getLocalRanks() const override {
    std::vector<int64_t> ranks(isSplit ? 1 : kRanks);
    std::iota(ranks.begin(), ranks.end(), kRanks - ranks.size());
    return ranks;
  }
  std::unique_ptr<Device> createDevice(mw_rt_context &rank, std::string &) override {
    return std::make_unique<SeparateDevice>(createCpuDevice(rank, *this));
  }
  bool reset(std::string &) override { return true; }
  void fail(const std::string &message) override { told.push_back(message); }
  bool agree(int64_t &, std::string &) override { return true; }
  bool broadcast(int64_t, void *, int64_t, std::string &) override { return true; }
  bool run(const Caller &, const mw_rt_collective &, const void *const *, void *const *) override {
    return false;
  }
  bool exchange(const Caller &, const mw_rt_collective &, const void *, const std::vector<int64_t> &,
                void *, const std::vector<int64_t> &) override {
    return false;
  }

private:
  const bool isSplit;
};

const bool added = [] {
  addBackend("separate",
             [](int64_t, World &, const std::string &mode, std::string &) -> Backend * {
               return new SeparateBackend(mode == "split");
             });
  return true;
}();

mw_rt_axes allRanks() {
  mw_rt_axes axes = {};
  axes.count = 1;
  axes.axes[0] = {1, kRanks};
  return axes;
}

ProgramValue describeVector(const std::string &name, int64_t size, bool isSharded) {
  ProgramValue value;
  value.name = name;
  value.shape = {size};
  value.localShape = {isSharded ? size / kRanks : size};
  value.layout.dims = {{{size, size, isSharded ? allRanks() : mw_rt_axes{}}}};
  return value;
}

/// result = input + weight + packed + constant, in two launches: the first writes the arena.
int32_t addAll(mw_rt_context *context, char *arena, const void *const *arguments,
               const void *const *prepared, const void *const *constants, const void **results) {
  mw_rt_launch launch = {};
  launch.items = 4;
  launch.grain = 1;
  launch.num_inputs = 2;
  launch.num_outputs = 1;
  launch.outputs[0] = {MW_F32, 4};
  mw_rt_kernel add = [](void *const *buffers, int64_t begin, int64_t end, void *) {
    for (int64_t i = begin; i < end; ++i)
      static_cast<float *>(buffers[2])[i] =
          static_cast<float *>(buffers[0])[i] + static_cast<float *>(buffers[1])[i];
  };
  auto run = [&](int64_t op, const void *a, const void *b, char *to) {
    void *buffers[] = {const_cast<void *>(a), const_cast<void *>(b), to};
    return mw_rt_run_kernel(context, op, &launch, add, buffers);
  };
  if (int32_t status = run(0, arguments[0], arguments[1], arena))
    return status;
  if (int32_t status = run(1, arena, prepared[0], arena + 64))
    return status;
  results[0] = arena + 128;
  return run(2, arena + 64, constants[0], arena + 128);
}

struct SeparateProgram {
  std::vector<float> input{1, 2, 3, 4, 5, 6, 7, 8}, weight{10, 20, 30, 40},
      packed{100, 200, 300, 400}, constant{1000, 2000, 3000, 4000};
  std::vector<float> output = std::vector<float>(8, 0);
  std::unique_ptr<Session> program;
  std::string error;

  SeparateProgram() {
    ProgramDescription description;
    description.numRanks = kRanks;
    EntryDescription entry;
    entry.arenaBytes = 192;
    entry.ops = {"first", "second", "third"};
    entry.inputs = {describeVector("input", 8, /*isSharded=*/true)};
    description.parameters = {describeVector("weight", 4, /*isSharded=*/false),
                              describeVector("packed", 4, /*isSharded=*/false)};
    entry.outputs = {describeVector("output", 8, /*isSharded=*/true)};
    entry.arguments = {{ProgramArgument::Input, 0},
                       {ProgramArgument::Parameter, 0},
                       {ProgramArgument::Parameter, 1, /*isRead=*/false}};
    // One panel of four columns.
    PreparedWeight prepared;
    prepared.index = 1;
    prepared.packing = {MW_F32, MW_F32, /*k=*/1, /*n=*/4, /*transposed=*/0, /*panel=*/4, 1};
    description.prepared = {prepared};
    entry.prepared = {0};
    Bytes bytes;
    bytes.data = std::shared_ptr<const void>(std::shared_ptr<void>(), constant.data());
    bytes.size = 16;
    entry.constants.push_back({bytes});
    description.entries = {entry};
    program = Session::create(std::move(description), {addAll}, nullptr, "separate", error);
  }
  bool setParameters() {
    return program->setParameter("weight", {DType::F32, {4}, weight.data()}, error) &&
           program->setParameter("packed", {DType::F32, {4}, packed.data()}, error);
  }
  bool run(RunOptions options = {}) {
    return program->run(0, {{DType::F32, {8}, input.data()}}, {output.data()}, options, error);
  }
  std::vector<float> getExpected() const {
    std::vector<float> expected;
    for (int64_t i = 0; i < 8; ++i)
      expected.push_back(input[i] + weight[i % 4] + packed[i % 4] + constant[i % 4]);
    return expected;
  }
};

TEST(Devices, OwnMemory) {
  SeparateProgram test;
  ASSERT_TRUE(test.program) << test.error;
  ASSERT_TRUE(test.setParameters()) << test.error;
  launches = copiesIn = copiesOut = synchronizations = 0;
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
  EXPECT_EQ(launches, 3 * kRanks);
  // Input, weight, packed weight and constant; then the output.
  EXPECT_EQ(copiesIn, 4 * kRanks);
  EXPECT_EQ(copiesOut, kRanks);
  EXPECT_EQ(synchronizations, kRanks);
  // Values that have not changed stay on the device.
  test.input[0] = 50;
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
  EXPECT_EQ(copiesIn, 5 * kRanks);
}

TEST(Devices, NewParameters) {
  SeparateProgram test;
  ASSERT_TRUE(test.program) << test.error;
  ASSERT_TRUE(test.setParameters()) << test.error;
  ASSERT_TRUE(test.run()) << test.error;
  test.packed = {7, 7, 7, 7};
  ASSERT_TRUE(test.setParameters()) << test.error;
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
}

TEST(Devices, MeasuredAndFinite) {
  SeparateProgram test;
  ASSERT_TRUE(test.program) << test.error;
  ASSERT_TRUE(test.setParameters()) << test.error;
  RunOptions options;
  options.measure = options.checkFinite = true;
  ASSERT_TRUE(test.run(options)) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
  EXPECT_EQ(test.program->getRunReport().planned, 192);
  EXPECT_EQ(test.program->getRunReport().seen, 192);
  test.input[5] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(test.run(options));
  EXPECT_EQ(test.error, "rank 1: first: is infinity at element 1 of result 0");
}

TEST(Devices, StillBusyAtTheDeadline) {
  SeparateProgram test;
  ASSERT_TRUE(test.program) << test.error;
  ASSERT_TRUE(test.setParameters()) << test.error;
  isBusy = true;
  EXPECT_FALSE(test.run());
  EXPECT_NE(test.error.find("third: its device is still busy after the end of the program"),
            std::string::npos)
      << test.error;
  // The device was idle at the second attempt, so the rank came back.
  EXPECT_FALSE(test.program->getWorld().isStuck());
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
}

TEST(Devices, PartsOfABundle) {
  SeparateProgram test;
  ASSERT_TRUE(test.program) << test.error;
  auto lend = [](const std::vector<float> &values) {
    Bytes bytes;
    bytes.data = std::shared_ptr<const void>(std::shared_ptr<void>(), values.data());
    bytes.size = int64_t(values.size()) * 4;
    return bytes;
  };
  std::vector<float> panel = test.packed;
  panel.resize(16);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(test.program->setPlaced(0, rank, lend(test.weight), test.error)) << test.error;
    ASSERT_TRUE(test.program->setPrepared(0, rank, lend(panel), test.error)) << test.error;
  }
  ASSERT_TRUE(test.run()) << test.error;
  EXPECT_EQ(test.output, test.getExpected());
}

/// Exchanges two states.
int32_t exchange(mw_rt_context *, char *, const void *const *arguments, const void *const *,
                 const void *const *, const void **results) {
  results[0] = arguments[1];
  results[1] = arguments[0];
  return 0;
}

/// A session whose entry writes two states.
std::unique_ptr<Session> startTwoStates(mw_rt_entry code, const std::string &backend,
                                        std::string &error) {
  ProgramDescription description;
  description.numRanks = kRanks;
  std::string zeros(4, '\0');
  description.states = {{describeVector("a", 8, /*isSharded=*/true), "", zeros},
                        {describeVector("b", 8, /*isSharded=*/true), "", zeros}};
  EntryDescription &entry = description.entries.emplace_back();
  entry.arenaBytes = 64;
  entry.arguments = {{ProgramArgument::State, 0}, {ProgramArgument::State, 1}};
  entry.stateResults = {0, 1};
  return Session::create(description, {code}, nullptr, backend, error);
}

TEST(Devices, States) {
  std::string error;
  auto session = startTwoStates(exchange, "separate", error);
  ASSERT_TRUE(session) << error;
  std::vector<float> ones = {1, 1, 1, 1, 2, 2, 2, 2}, a(8), b(8), none(8, 0);
  ASSERT_TRUE(session->setStates({{"a", {DType::F32, {8}, ones.data()}}}, error)) << error;
  copies = 0;
  ASSERT_TRUE(session->run(0, {}, {}, {}, error)) << error;
  // Both results are copied aside and then to the states.
  EXPECT_EQ(copies, 4 * kRanks);
  ASSERT_TRUE(session->getStates({a.data(), b.data()}, error)) << error;
  EXPECT_EQ(a, none);
  EXPECT_EQ(b, ones);
}

/// Gives the state the packed one plus one.
int32_t addOne(mw_rt_context *context, char *arena, const void *const *,
               const void *const *prepared, const void *const *, const void **results) {
  mw_rt_launch launch = {};
  launch.items = 4;
  launch.grain = 1;
  launch.num_inputs = 1;
  launch.num_outputs = 1;
  launch.outputs[0] = {MW_F32, 4};
  mw_rt_kernel add = [](void *const *buffers, int64_t begin, int64_t end, void *) {
    for (int64_t i = begin; i < end; ++i)
      static_cast<float *>(buffers[1])[i] = static_cast<float *>(buffers[0])[i] + 1;
  };
  void *buffers[] = {const_cast<void *>(prepared[0]), arena};
  results[0] = arena;
  return mw_rt_run_kernel(context, 0, &launch, add, buffers);
}

/// A packed state has the value that a run or the user gave to the state.
TEST(Devices, PackedStates) {
  for (std::string backend : {"separate", "local"}) {
    ProgramDescription description;
    description.numRanks = kRanks;
    ProgramState &state = description.states.emplace_back();
    state.value = describeVector("a", 4, /*isSharded=*/false);
    state.fill = std::string(4, '\0');
    PreparedWeight &prepared = description.prepared.emplace_back();
    prepared.kind = ProgramArgument::State;
    prepared.packing = {MW_F32, MW_F32, /*k=*/1, /*n=*/4, /*transposed=*/0, /*panel=*/4, 1};
    EntryDescription &entry = description.entries.emplace_back();
    entry.arenaBytes = 64;
    entry.ops = {"add"};
    entry.arguments = {{ProgramArgument::State, 0, /*isRead=*/false}};
    entry.prepared = {0};
    entry.stateResults = {0};
    entry.updates = {{StateUpdate::Elsewhere}};
    std::string error;
    auto session = Session::create(description, {addOne}, nullptr, backend, error);
    ASSERT_TRUE(session) << error;
    std::vector<float> a(4);
    auto expect = [&](std::vector<float> values) {
      ASSERT_TRUE(session->run(0, {}, {}, {}, error)) << error;
      ASSERT_TRUE(session->getStates({a.data()}, error)) << error;
      EXPECT_EQ(a, values) << backend;
    };
    expect({1, 1, 1, 1});
    expect({2, 2, 2, 2});
    std::vector<float> given = {10, 20, 30, 40};
    ASSERT_TRUE(session->setStates({{"a", {DType::F32, {4}, given.data()}}}, error)) << error;
    expect({11, 21, 31, 41});
    expect({12, 22, 32, 42});
  }
}

TEST(Devices, CallThatADeviceLacks) {
  ProgramDescription description;
  description.numRanks = kRanks;
  description.calls = {MW_RT_CALL_GEMM, MW_RT_CALL_TAKE_ALONG};
  description.entries.resize(1);
  std::string error;
  EXPECT_TRUE(Session::create(description, {exchange}, nullptr, "separate", error)) << error;
  lacking = MW_RT_CALL_TAKE_ALONG;
  EXPECT_FALSE(Session::create(description, {exchange}, nullptr, "separate", error));
  lacking = -1;
  EXPECT_EQ(error, "the program calls 'take_along', which device 'separate' does not perform: "
                   "expected gemm, weight_grad, gather, index_copy, replace_rows, scatter_add, "
                   "top_k, limit, route, take_rows, sum_rows, repeat_rows, sum_groups, grouped_product, "
                   "grouped_outer, send_rows, return_rows, compact, expand, all_gather_v, reduce_scatter_v, mask, "
                   "axis_index, reorder, place, "
                   "positions, pack, largest, encode, decode, dequantize, coded_product");
}

/// Makes a call of a kind that no device knows.
int32_t callUnknown(mw_rt_context *context, char *, const void *const *, const void *const *,
                    const void *const *, const void **) {
  static const mw_rt_call what = {1234};
  return mw_rt_perform(context, 0, &what, nullptr);
}

TEST(Devices, UnknownCall) {
  ProgramDescription description;
  description.numRanks = kRanks;
  description.entries.resize(1);
  description.entries[0].ops = {"the op"};
  std::string error;
  auto session = Session::create(description, {callUnknown}, nullptr, "local", error);
  ASSERT_TRUE(session) << error;
  EXPECT_FALSE(session->run(0, {}, {}, {}, error));
  EXPECT_NE(error.find("the op: device 'cpu' does not perform calls of kind 1234"),
            std::string::npos)
      << error;
}

TEST(Devices, CopyThatFailsBeforeACommit) {
  std::string error;
  auto session = startTwoStates(exchange, "separate", error);
  ASSERT_TRUE(session) << error;
  std::vector<float> ones = {1, 1, 1, 1, 2, 2, 2, 2}, a(8), b(8), none(8, 0);
  ASSERT_TRUE(session->setStates({{"a", {DType::F32, {8}, ones.data()}}}, error)) << error;
  // The new values are copied aside: two of each rank.
  for (int64_t done = 0; done < 2 * kRanks; ++done) {
    copiesToFailure = done;
    EXPECT_FALSE(session->run(0, {}, {}, {}, error));
    EXPECT_EQ(error, "the device does not work");
    copiesToFailure = -1;
    ASSERT_TRUE(session->getStates({a.data(), b.data()}, error)) << error;
    EXPECT_EQ(a, ones);
    EXPECT_EQ(b, none);
  }
  // The session goes on.
  ASSERT_TRUE(session->run(0, {}, {}, {}, error)) << error;
  ASSERT_TRUE(session->getStates({a.data(), b.data()}, error)) << error;
  EXPECT_EQ(a, none);
  EXPECT_EQ(b, ones);
}

/// Gives both states values that a commit copies from the arena.
int32_t putArena(mw_rt_context *, char *arena, const void *const *, const void *const *,
                 const void *const *, const void **results) {
  results[0] = arena;
  results[1] = arena + 32;
  return 0;
}

TEST(Devices, CopyThatFailsInACommit) {
  std::vector<float> a(8), b(8);
  // After some copies the state is mixed. Nothing may read or write it any more.
  for (int64_t done = 0; done < 2 * kRanks; ++done) {
    std::string error;
    auto session = startTwoStates(putArena, "separate", error);
    ASSERT_TRUE(session) << error;
    copiesToFailure = done;
    EXPECT_FALSE(session->run(0, {}, {}, {}, error));
    copiesToFailure = -1;
    std::string ended = "the session has ended: the commit of a call failed: rank " +
                        std::to_string(done / 2) +
                        ": the device does not work; the last saved state is whole";
    EXPECT_EQ(error, ended);
    EXPECT_FALSE(session->run(0, {}, {}, {}, error));
    EXPECT_EQ(error, ended);
    EXPECT_FALSE(session->getStates({a.data(), b.data()}, error));
    EXPECT_EQ(error, ended);
    EXPECT_FALSE(session->setStates({{"a", {DType::F32, {8}, a.data()}}}, error));
    EXPECT_EQ(error, ended);
    EXPECT_FALSE(session->save("not written", error));
    EXPECT_EQ(error, ended);
  }
}

TEST(Devices, CommitThatFailsInOneProcess) {
  std::string error;
  auto session = startTwoStates(putArena, "separate:split", error);
  ASSERT_TRUE(session) << error;
  told.clear();
  copiesToFailure = 1;
  EXPECT_FALSE(session->run(0, {}, {}, {}, error));
  copiesToFailure = -1;
  // The others committed. They hear that the session has ended, and do not wait for this process.
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], error);
  EXPECT_EQ(error.rfind("rank 1: the session has ended: the commit of a call failed", 0), 0u)
      << error;
}

std::atomic<bool> isOutOfRange{false};

/// Replaces one of `size` elements of type f32.
mw_rt_replace_rows replaceOneOf(int64_t size, int64_t offset) {
  mw_rt_replace_rows what = {};
  what.call.kind = MW_RT_CALL_REPLACE_ROWS;
  what.rows.dtype = MW_F32;
  what.rows.index_dtype = MW_I64;
  what.rows.outer = what.rows.inner = what.rows.count = 1;
  what.rows.size = size;
  what.offset = offset;
  return what;
}

/// Puts the first element of the rank's part of "b" into the last of "a". Then it may fail.
int32_t putLast(mw_rt_context *context, char *, const void *const *arguments, const void *const *,
                const void *const *constants, const void **results) {
  static const mw_rt_replace_rows calls[] = {replaceOneOf(4, /*offset=*/0),
                                             replaceOneOf(4, /*offset=*/128)};
  auto *log = const_cast<void *>(results[0]), *state = const_cast<void *>(arguments[0]);
  results[0] = state;
  for (int i = 0; i <= isOutOfRange; ++i) {
    void *buffers[] = {state, const_cast<void *>(constants[i]), const_cast<void *>(arguments[1]),
                       log};
    if (mw_rt_perform(context, 0, &calls[i].call, buffers) != 0)
      return 1;
  }
  return 0;
}

TEST(Devices, ReplacedRowsOfStates) {
  static const int64_t indices[] = {3, 4};
  ProgramDescription description;
  description.numRanks = kRanks;
  std::string zeros(4, '\0');
  description.states = {{describeVector("a", 8, /*isSharded=*/true), "", zeros},
                        {describeVector("b", 8, /*isSharded=*/true), "", zeros}};
  EntryDescription &entry = description.entries.emplace_back();
  entry.ops = {"the op"};
  entry.arguments = {{ProgramArgument::State, 0}, {ProgramArgument::State, 1}};
  entry.stateResults = {0};
  entry.updates = {{StateUpdate::Rows, 256}};
  for (const int64_t &index : indices)
    entry.constants.push_back({std::shared_ptr<const void>(std::shared_ptr<void>(), &index), 8});
  std::string error;
  auto session = Session::create(description, {putLast}, nullptr, "separate", error);
  ASSERT_TRUE(session) << error;
  std::vector<float> twos(8, 2), a(8), b(8), none(8, 0), put = {0, 0, 0, 2, 0, 0, 0, 2};
  ASSERT_TRUE(session->setStates({{"b", {DType::F32, {8}, twos.data()}}}, error)) << error;
  for (bool fails : {true, false}) {
    isOutOfRange = fails;
    EXPECT_EQ(session->run(0, {}, {}, {}, error), !fails);
    if (fails)
      EXPECT_NE(error.find("index 4 at position 0 is out of range: expected 0 to 3"),
                std::string::npos)
          << error;
    ASSERT_TRUE(session->getStates({a.data(), b.data()}, error)) << error;
    EXPECT_EQ(a, fails ? none : put);
  }
}

} // namespace

//===- CallTests.cpp - calls of several steps -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Session.h"

#include "gtest/gtest.h"

#include <cstring>

using namespace meshwright::rt;

namespace {

ProgramValue describeValue(const std::string &name, std::vector<int64_t> shape, DType type) {
  ProgramValue value;
  value.name = name;
  value.type = type;
  value.shape = value.localShape = std::move(shape);
  for (int64_t size : value.shape)
    value.layout.dims.push_back({{size, size, {}}});
  return value;
}

/// y = x + ticks * scale, ticks += 1; done from three ticks on.
int32_t tick(mw_rt_context *, char *arena, const void *const *arguments, const void *const *,
             const void *const *, const void **results) {
  auto *x = static_cast<const float *>(arguments[0]);
  auto *scale = static_cast<const float *>(arguments[1]);
  int64_t ticks = *static_cast<const int64_t *>(arguments[2]);
  auto *y = reinterpret_cast<float *>(arena);
  for (int i = 0; i < 2; ++i)
    y[i] = x[i] + float(ticks) * *scale;
  ++ticks;
  arena[64] = ticks >= 3;
  std::memcpy(arena + 128, &ticks, sizeof(ticks));
  results[0] = y;
  results[1] = arena + 64;
  results[2] = arena + 128;
  return 0;
}

/// n = ticks, total += ticks, ticks = 0; y = x.
int32_t finish(mw_rt_context *, char *arena, const void *const *arguments, const void *const *,
               const void *const *, const void **results) {
  int64_t total;
  std::memcpy(&total, arguments[1], sizeof(total));
  total += *static_cast<const int64_t *>(arguments[0]);
  std::memcpy(arena, &total, sizeof(total));
  std::memcpy(arena + 64, arguments[2], 2 * sizeof(float));
  std::memset(arena + 128, 0, sizeof(int64_t));
  std::memcpy(arena + 192, arguments[0], sizeof(int64_t));
  results[0] = arena + 192;
  results[1] = arena + 64;
  results[2] = arena + 128;
  results[3] = arena;
  return 0;
}

/// `run` runs `tick` on two chunks, up to five times until it is done, and itself on the third.
ProgramDescription describeProgram() {
  ProgramDescription program;
  std::string zero(8, '\0');
  program.states = {{describeValue("ticks", {}, DType::I64), "", zero},
                    {describeValue("total", {}, DType::I64), "", zero}};
  program.states[0].isTransient = true;
  EntryDescription &run = program.entries.emplace_back();
  run.name = "run";
  run.arenaBytes = 256;
  run.inputs = {describeValue("x", {2}, DType::F32)};
  run.outputs = {describeValue("n", {}, DType::I64), describeValue("y", {2}, DType::F32)};
  run.arguments = {{ProgramArgument::State, 0}, {ProgramArgument::State, 1},
                   {ProgramArgument::Input, 0}};
  run.stateResults = {0, 1};
  run.steps = {{1, 2, 5, 1}, {0}};
  EntryDescription &part = program.entries.emplace_back();
  part.name = "tick";
  part.arenaBytes = 192;
  part.inputs = {describeValue("x", {2}, DType::F32), describeValue("scale", {1}, DType::F32)};
  part.inputs[1].isWhole = true;
  part.outputs = {describeValue("y", {2}, DType::F32), describeValue("done", {}, DType::I1)};
  part.arguments = {{ProgramArgument::Input, 0}, {ProgramArgument::Input, 1},
                    {ProgramArgument::State, 0}};
  part.stateResults = {0};
  return program;
}

TEST(Call, PortsAreThoseOfAllSteps) {
  ProgramDescription program = describeProgram();
  EXPECT_TRUE(program.isPart(1));
  EXPECT_FALSE(program.isPart(0));
  Call call = program.getCall(0);
  ASSERT_EQ(call.inputs.values.size(), 2u);
  EXPECT_EQ(call.inputs.values[0].name, "x");
  EXPECT_EQ(call.inputs.values[0].shape, std::vector<int64_t>{6});
  EXPECT_EQ(call.inputs.values[1].shape, std::vector<int64_t>{1});
  ASSERT_EQ(call.outputs.values.size(), 3u);
  EXPECT_EQ(call.outputs.values[0].name, "n");
  EXPECT_EQ(call.outputs.values[1].shape, std::vector<int64_t>{6});
  EXPECT_EQ(call.outputs.values[2].name, "done");
  // The entry has the chunk behind those of the step before it.
  EXPECT_EQ(call.inputs.uses[0][0].chunk, 0);
  EXPECT_EQ(call.inputs.uses[0][1].chunk, -1);
  EXPECT_EQ(call.inputs.uses[1][0].chunk, 2);
  std::string error;
  EXPECT_EQ(program.findEntry("tick", error), -1);
  EXPECT_EQ(error, "the program has no entry 'tick': expected 'run'");
}

TEST(Call, AStepRunsUntilItsOutputIsTrue) {
  std::string error;
  auto session = Session::create(describeProgram(), {finish, tick}, nullptr, "local", error);
  ASSERT_TRUE(session) << error;
  std::vector<float> x = {1, 2, 3, 4, 5, 6}, y(6), scale = {10};
  int64_t n = 0, total = 0;
  char done = 0;
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(session->run(0, {{DType::F32, {6}, x.data()}, {DType::F32, {1}, scale.data()}},
                             {&n, y.data(), &done}, {}, error))
        << error;
    // The first chunk needs three runs. At its only run, the second one begins with three ticks.
    EXPECT_EQ(y, (std::vector<float>{21, 22, 33, 34, 5, 6}));
    EXPECT_EQ(n, 4);
    EXPECT_EQ(done, 1);
    ASSERT_TRUE(session->getStates({&total}, error)) << error;
    EXPECT_EQ(total, 4 * i);
  }
}

TEST(Call, AStepRunsItsTimes) {
  ProgramDescription program = describeProgram();
  program.entries[0].steps[0].times = 2;
  std::string error;
  auto session = Session::create(program, {finish, tick}, nullptr, "local", error);
  ASSERT_TRUE(session) << error;
  std::vector<float> x(6), y(6), scale = {1};
  int64_t n = 0;
  char done = 1;
  auto run = [&] {
    return session->run(0, {{DType::F32, {6}, x.data()}, {DType::F32, {1}, scale.data()}},
                        {&n, y.data(), &done}, {}, error);
  };
  ASSERT_TRUE(run()) << error;
  // Ticks 0 and 1 on the first chunk, and 2, which is the third, on the second one.
  EXPECT_EQ(y, (std::vector<float>{1, 1, 2, 2, 0, 0}));
  EXPECT_EQ(n, 3);
  program.entries[0].steps[0].until = -1;
  session = Session::create(program, {finish, tick}, nullptr, "local", error);
  ASSERT_TRUE(session && run()) << error;
  EXPECT_EQ(y, (std::vector<float>{1, 1, 3, 3, 0, 0}));
  EXPECT_EQ(n, 4);
}

TEST(Call, StepsThatAreWrong) {
  auto refuse = [](auto change) {
    ProgramDescription program = describeProgram();
    change(program.entries[0].steps, program);
    std::string error;
    EXPECT_FALSE(Session::create(program, {finish, tick}, nullptr, "local", error));
    return error;
  };
  using Steps = std::vector<CallStep>;
  std::string prefix = "a step of entry 'run': ";
  EXPECT_EQ(refuse([](Steps &steps, auto &) { steps[0].entry = 2; }),
            prefix + "it runs entry 2: expected the entry itself, last, and others before");
  EXPECT_EQ(refuse([](Steps &steps, auto &) { steps.pop_back(); }),
            prefix + "it runs entry 1: expected the entry itself, last, and others before");
  EXPECT_EQ(refuse([](Steps &steps, auto &) { steps[1].chunks = 2; }),
            prefix + "2 chunks, 1 times, until output -1: expected positive numbers, and once for "
                     "the last step");
  EXPECT_EQ(refuse([](Steps &, auto &program) { program.states[0].isTransient = false; }),
            prefix + "'tick' writes the state 'ticks': expected writes of transient states alone");
  EXPECT_EQ(refuse([](Steps &steps, auto &) { steps[0].until = 0; }),
            prefix + "output 'y': expected i1[] to end a step, got f32[2]");
  EXPECT_EQ(refuse([](Steps &, auto &program) { program.entries[1].steps = {{1}}; }),
            prefix + "'tick' has steps of its own");
  EXPECT_EQ(refuse([](Steps &, auto &program) { program.entries[0].inputs[0].shape = {3}; }),
            prefix + "'x': expected one type, got f32[3] in one step and f32[2] in another");
  EXPECT_EQ(refuse([](Steps &, auto &program) { program.entries[0].inputs[0].isWhole = true; }),
            prefix + "'x': expected one type, got f32[2], whole in one step and f32[2] in another");
  EXPECT_EQ(refuse([](Steps &, auto &program) { program.entries[1].inputs[1].name = "x"; }),
            "entry 'tick' has two values named 'x': expected names that differ");
}

} // namespace

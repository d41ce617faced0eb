//===- ProgramTests.cpp - weights, files and progress of programs ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Cpu.h"
#include "meshwright/runtime/include/MappedFile.h"
#include "meshwright/runtime/include/Progress.h"
#include "meshwright/runtime/include/Session.h"
#include "meshwright/runtime/include/WholeFile.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <poll.h>
#include <pty.h>
#include <thread>
#include <unistd.h>

using namespace meshwright::rt;

namespace {

std::string writeFile(const char *name, size_t bytes) {
  std::string path = testing::TempDir() + name + std::to_string(getpid());
  std::ofstream(path) << std::string(bytes, 'x');
  return path;
}

TEST(MappedFile, ReadsAndNamesWhatItCannotRead) {
  std::string path = writeFile("mapped", 100), error;
  auto file = MappedFile::open(path, error);
  ASSERT_TRUE(file) << error;
  EXPECT_EQ(std::string(file->getData(), file->getSize()), std::string(100, 'x'));
  EXPECT_FALSE(MappedFile::open(path + ".none", error));
  EXPECT_EQ(error, path + ".none: No such file or directory");
  EXPECT_FALSE(MappedFile::open(testing::TempDir(), error));
  EXPECT_EQ(error, testing::TempDir() + ": not a file");
  unlink(path.c_str());
  // Still there for who has it.
  EXPECT_EQ(file->getData()[99], 'x');
}

TEST(MappedFile, IsNamedWhereItIsCutWhileItIsRead) {
  std::string path = writeFile("cut", 1 << 20), error;
  auto before = MappedFile::open(writeFile("before", 10), error);
  EXPECT_EXIT(
      {
        MappedFile::reportLostFiles("tool");
        auto file = MappedFile::open(path, error);
        before.reset();
        if (truncate(path.c_str(), 10) == 0)
          std::exit(*static_cast<const volatile char *>(file->getData() + (1 << 19)));
      },
      testing::ExitedWithCode(1), "tool: error: .*cut.*: cannot be read any more");
  unlink(path.c_str());
}

TEST(MappedFile, NothingHalfDoneStaysWhereItIsCut) {
  std::string path = writeFile("cut", 1 << 20), half = writeFile("half", 10), error;
  EXPECT_EXIT(
      {
        MappedFile::reportLostFiles("tool");
        Temporary temporary(half);
        auto file = MappedFile::open(path, error);
        if (truncate(path.c_str(), 10) == 0)
          std::exit(*static_cast<const volatile char *>(file->getData() + (1 << 19)));
      },
      testing::ExitedWithCode(1), "cannot be read any more");
  EXPECT_NE(access(half.c_str(), F_OK), 0);
  unlink(path.c_str());
}

TEST(MappedFile, LeavesOtherSignalsAlone) {
  EXPECT_EXIT(
      {
        MappedFile::reportLostFiles("tool");
        raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(Cpu, KnowsItself) {
  EXPECT_FALSE(hasFeature("none"));
  EXPECT_EQ(getMissingFeatures({"none", "neither"}), "none, neither");
  EXPECT_EQ(getMissingFeatures({}), "");
#if defined(__x86_64__)
  EXPECT_EQ(getArchitecture(), "x86-64");
  __builtin_cpu_init();
  EXPECT_EQ(hasFeature("sse3"), bool(__builtin_cpu_supports("sse3")));
  EXPECT_EQ(hasFeature("avx"), bool(__builtin_cpu_supports("avx")));
  EXPECT_EQ(hasFeature("avx2"), bool(__builtin_cpu_supports("avx2")));
  EXPECT_EQ(hasFeature("fma"), bool(__builtin_cpu_supports("fma")));
  EXPECT_EQ(hasFeature("bmi2"), bool(__builtin_cpu_supports("bmi2")));
  EXPECT_EQ(hasFeature("gfni"), bool(__builtin_cpu_supports("gfni")));
  EXPECT_EQ(hasFeature("avx512f"), bool(__builtin_cpu_supports("avx512f")));
  EXPECT_EQ(hasFeature("avx512vbmi"), bool(__builtin_cpu_supports("avx512vbmi")));
  EXPECT_EQ(hasFeature("avx512bf16"), bool(__builtin_cpu_supports("avx512bf16")));
  EXPECT_EQ(hasFeature("avx512vpopcntdq"), bool(__builtin_cpu_supports("avx512vpopcntdq")));
#endif
}

/// A matrix of 3 x 4, rows over 2 ranks of a mesh of 2 x 2, padded to 4.
ProgramValue makeValue() {
  ProgramValue value;
  value.name = "w";
  value.type = DType::I32;
  value.shape = {3, 4};
  value.localShape = {2, 4};
  mw_rt_axes rows = {};
  rows.count = 1;
  rows.axes[0] = {1, 2};
  value.layout.dims = {{{3, 4, rows}}, {{4, 4, {}}}};
  return value;
}

TEST(ProgramValue, RanksThatHoldTheSameHaveOneHolder) {
  ProgramValue value = makeValue();
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(value.getHolder(rank), rank % 2);
  value.unreduced.count = 1;
  value.unreduced.axes[0] = {2, 2};
  for (int64_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(value.getHolder(rank), rank);
}

TEST(ProgramValue, PartsAndPaddingAndSums) {
  ProgramValue value = makeValue();
  int32_t stored[12], local[8];
  for (int i = 0; i < 12; ++i)
    stored[i] = i + 1;
  place(value, 3, {DType::I32, {3, 4}, stored}, local);
  EXPECT_EQ(std::vector<int32_t>(local, local + 8),
            std::vector<int32_t>({9, 10, 11, 12, 0, 0, 0, 0}));
  // A part of the sum: all of it, or none.
  value.unreduced.count = 1;
  value.unreduced.axes[0] = {2, 2};
  place(value, 1, {DType::I32, {3, 4}, stored}, local);
  EXPECT_EQ(local[0], 9);
  place(value, 3, {DType::I32, {3, 4}, stored}, local);
  EXPECT_EQ(local[0], 0);
}

/// A matrix of 7 x 10 on 4 ranks: rows are 7 tokens in zigzag order, padded to 8, over 2 ranks, and
/// columns are 2 x 5, of which the inner ones are over 2 ranks and padded to 6.
ProgramValue makeShuffledValue() {
  ProgramValue value;
  value.type = DType::I32;
  value.shape = {7, 10};
  value.localShape = {4, 6};
  mw_rt_axes rows = {}, columns = {};
  rows.count = columns.count = 1;
  rows.axes[0] = {1, 2};
  columns.axes[0] = {2, 2};
  value.layout.dims = {{{7, 8, rows, meshwright::TokenOrder::Zigzag, 2}},
                       {{2, 2, {}}, {5, 6, columns}}};
  return value;
}

TEST(ProgramValue, PiecesAreThePartsOfTheWhole) {
  // Four boxes; the last one has its rows beside each other in memory.
  int32_t whole[70], turned[4 * 6];
  for (int i = 0; i < 70; ++i)
    whole[i] = i + 1;
  for (int row = 0; row < 4; ++row)
    for (int column = 0; column < 6; ++column)
      turned[column * 4 + row] = whole[(3 + row) * 10 + 4 + column];
  HostTensor pieces{DType::I32, {7, 10}};
  pieces.pieces = {{{0, 0}, {3, 4}, {10, 1}, whole},
                   {{0, 4}, {3, 6}, {10, 1}, whole + 4},
                   {{3, 0}, {4, 4}, {10, 1}, whole + 30},
                   {{3, 4}, {4, 6}, {1, 4}, turned}};
  HostTensor dense{DType::I32, {7, 10}, whole};
  for (const ProgramValue &value : {makeShuffledValue(), makeValue()}) {
    for (int64_t rank = 0; rank < 4; ++rank) {
      ProgramValue part = value;
      if (value.shape != dense.shape)
        part.offsets = {2, 5};
      std::vector<int32_t> want(part.localShape[0] * part.localShape[1], -1), got = want;
      place(part, rank, dense, want.data());
      place(part, rank, pieces, got.data());
      EXPECT_EQ(got, want);
    }
  }
}

TEST(HostTensor, RunsAreTheElementsOfABox) {
  float whole[] = {1, 2, 3, 4, 5, 6}, other[] = {7, 9, 8, 10};
  HostTensor tensor{DType::F32, {2, 5}};
  tensor.pieces = {{{0, 0}, {2, 3}, {3, 1}, whole}, {{0, 3}, {2, 2}, {1, 2}, other}};
  auto visit = [&](const std::vector<int64_t> &offsets, const std::vector<int64_t> &extents) {
    std::vector<std::vector<float>> runs;
    tensor.visitRuns(offsets, extents, [&](const void *data, int64_t count) {
      auto *numbers = static_cast<const float *>(data);
      runs.emplace_back(numbers, numbers + count);
    });
    return runs;
  };
  using Runs = std::vector<std::vector<float>>;
  EXPECT_EQ(visit({}, {2, 5}), Runs({{1, 2, 3, 4, 5, 6}, {7}, {8}, {9}, {10}}));
  EXPECT_EQ(visit({1, 1}, {1, 3}), Runs({{5, 6}, {9}}));
  EXPECT_EQ(visit({0, 4}, {2, 1}), Runs({{8, 10}}));
  ProgramValue value;
  value.name = "w";
  value.shape = {2, 5};
  value.magnitude = 9;
  std::string problem = checkParameter(value, tensor);
  EXPECT_NE(problem.find("at most 9.000000, got 10.000000"), std::string::npos) << problem;
}

TEST(ProgramValue, WhatDoesNotFitIsNamed) {
  ProgramValue value = makeValue();
  EXPECT_EQ(checkParameter(value, {DType::I32, {3, 4}, nullptr}), "");
  EXPECT_EQ(checkParameter(value, {DType::I32, {4, 3}, nullptr}),
            "parameter 'w': expected i32[3, 4], got i32[4, 3]");
  value.offsets = {2, 0};
  EXPECT_EQ(checkParameter(value, {DType::I32, {5, 4}, nullptr}), "");
  EXPECT_EQ(checkParameter(value, {DType::I32, {4, 4}, nullptr}),
            "parameter 'w': expected i32[3, 4] within it, at 2 0, got i32[4, 4]");
}

/// The output to standard error, which is a terminal, while `body` runs. It is given
/// the other end.
template <typename Body> std::string watch(Body body) {
  int terminal = -1, end = -1;
  if (openpty(&terminal, &end, nullptr, nullptr, nullptr) != 0)
    return "no terminal";
  int saved = dup(STDERR_FILENO);
  dup2(end, STDERR_FILENO);
  body(terminal);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(end);
  // The text comes in pieces, and then an error: the writer has closed its end.
  std::string said;
  char text[4096];
  for (ssize_t length; (length = read(terminal, text, sizeof(text))) > 0;)
    said.append(text, length);
  close(terminal);
  return said;
}

/// A program of one rank that gives how often it was called, up to `most`.
int32_t calls, most;
int32_t count(mw_rt_context *, char *arena, const void *const *, const void *const *,
              const void *const *, const void **results) {
  int32_t value = std::min(++calls, most);
  std::memcpy(arena, &value, sizeof(value));
  results[0] = arena;
  return 0;
}

/// An empty string, or the error; sets `result`.
std::string runCounter(const char *runs, int32_t limit, int32_t &result) {
  ProgramDescription description;
  EntryDescription &entry = description.entries.emplace_back();
  entry.arenaBytes = 64;
  ProgramValue &output = entry.outputs.emplace_back();
  output.name = "n";
  output.type = DType::I32;
  output.shape = output.localShape = {1};
  output.layout.dims = {{{1, 1, {}}}};
  std::string error;
  auto program = Session::create(description, {count}, nullptr, "local", error);
  EXPECT_TRUE(program) << error;
  calls = 0;
  most = limit;
  if (runs)
    setenv("MESHWRIGHT_RUNS", runs, 1);
  EXPECT_EQ(program->run(0, {}, {&result}, {}, error), error.empty());
  unsetenv("MESHWRIGHT_RUNS");
  return error;
}

TEST(Program, RunsAsOftenAsAskedWithTheSameBits) {
  int32_t result = 0;
  EXPECT_EQ(runCounter(nullptr, 100, result), "");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(runCounter("5", 1, result), "");
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(result, 1);
  EXPECT_EQ(runCounter("5", 100, result), "run 2 gave output 'n' other bits than the first run");
  EXPECT_EQ(calls, 2);
  // A value that is no number counts as none.
  EXPECT_EQ(runCounter("many", 100, result), "");
  EXPECT_EQ(calls, 1);
}

/// The text that a terminal shows up to `that`, which comes soon.
std::string readUntil(int terminal, const std::string &text) {
  std::string said;
  char piece[4096];
  pollfd line{terminal, POLLIN, 0};
  while (said.find(text) == std::string::npos && poll(&line, 1, /*milliseconds=*/60000) == 1) {
    ssize_t length = read(terminal, piece, sizeof(piece));
    said.append(piece, std::max<ssize_t>(0, length));
    if (length <= 0)
      break;
  }
  EXPECT_NE(said.find(text), std::string::npos) << said;
  return said;
}

TEST(Progress, SaysHowFarItIsAndGoes) {
  std::string said = watch([](int terminal) {
    Progress progress("counting", 3);
    progress.step(2);
    EXPECT_EQ(readUntil(terminal, " s\x1b[K").find("\rcounting: 2 of 3, "), 0u);
  });
  EXPECT_EQ(said.substr(said.size() - 4), "\r\x1b[K");
}

TEST(Progress, TheLastOneMadeHasTheLine) {
  std::string said = watch([](int terminal) {
    Progress progress("counting");
    readUntil(terminal, "counting, ");
    {
      Progress inner("part");
      readUntil(terminal, "part, ");
    }
    readUntil(terminal, "\r\x1b[K\rcounting, ");
    Progress::clear();
    readUntil(terminal, "\r\x1b[K\rcounting, ");
    // Not in the order that they were made in.
    auto last = std::make_unique<Progress>("last");
    auto other = std::make_unique<Progress>("other");
    last.reset();
    readUntil(terminal, "other, ");
  });
  EXPECT_EQ(said.substr(said.size() - 4), "\r\x1b[K");
}

TEST(Progress, ShortWorkIsQuiet) {
  // On a busy machine even this may take long: then once more.
  std::chrono::steady_clock::duration time;
  std::string said;
  do {
    auto begin = std::chrono::steady_clock::now();
    said = watch([](int) { Progress progress("counting", 3); });
    time = std::chrono::steady_clock::now() - begin;
  } while (time > std::chrono::milliseconds(400));
  EXPECT_EQ(said, "");
}

TEST(Progress, QuietWithoutATerminalOrWhenAsked) {
  testing::internal::CaptureStderr();
  {
    Progress progress("counting");
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  // For the rest of the process: last.
  Progress::hide();
  EXPECT_EQ(watch([](int) {
              Progress progress("counting");
              std::this_thread::sleep_for(std::chrono::milliseconds(700));
            }),
            "");
}

} // namespace

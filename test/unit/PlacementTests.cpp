//===- PlacementTests.cpp - blocks of memory for stretches of time --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Placement.h"

#include "gtest/gtest.h"

#include <algorithm>
#include <random>
#include <vector>

using namespace meshwright;

namespace {

/// No two blocks that are needed at one step overlap, and the arena holds all.
void expectPlaced(const std::vector<MemoryBlock> &blocks, int64_t arena) {
  EXPECT_GE(arena, getLargestLiveSet(blocks));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const MemoryBlock &a = blocks[i];
    EXPECT_GE(a.offset, 0);
    EXPECT_EQ(a.offset % 64, 0);
    EXPECT_LE(a.offset + a.bytes, arena);
    for (size_t j = 0; j < i; ++j) {
      const MemoryBlock &b = blocks[j];
      bool meet = a.begin <= b.end && b.begin <= a.end;
      EXPECT_FALSE(meet && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
          << i << " and " << j;
    }
  }
}

std::vector<MemoryBlock> makeBlocks(std::mt19937 &random) {
  std::vector<MemoryBlock> blocks;
  int64_t count = 15 + random() % 100, steps = count / 2 + 1;
  for (int64_t i = 0; i < count; ++i) {
    int64_t begin = random() % steps;
    int64_t end = std::min<int64_t>(steps - 1, begin + random() % 10);
    blocks.push_back({int64_t(64 * (1 + random() % 60)), begin, end});
  }
  return blocks;
}

} // namespace

TEST(PlacementTests, NothingToPlace) {
  std::vector<MemoryBlock> none, one{{192, 3, 3}};
  EXPECT_EQ(placeBlocks(none, SearchEffort::Much), 0);
  EXPECT_EQ(getLargestLiveSet(none), 0);
  EXPECT_EQ(placeBlocks(one, SearchEffort::Some), 192);
}

TEST(PlacementTests, RandomBlocks) {
  std::mt19937 random(11);
  int64_t numHard = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<MemoryBlock> blocks = makeBlocks(random), again = blocks;
    int64_t some = placeBlocks(blocks, SearchEffort::Some);
    expectPlaced(blocks, some);
    int64_t much = placeBlocks(blocks, SearchEffort::Much);
    expectPlaced(blocks, much);
    EXPECT_LE(much, some);
    // The same from anew, and what is known to be had is had.
    EXPECT_EQ(placeBlocks(again, SearchEffort::Much), much);
    for (size_t i = 0; i < blocks.size(); ++i)
      EXPECT_EQ(again[i].offset, blocks[i].offset);
    EXPECT_LE(placeBlocks(again, SearchEffort::Much, much), much);
    int64_t enough = placeBlocks(again, SearchEffort::Much, 2 * much);
    expectPlaced(again, enough);
    EXPECT_LE(enough, 2 * much);
    // Nothing below it is found by stopping earlier.
    if (int64_t live = getLargestLiveSet(blocks); much <= live + live / 100)
      continue;
    ++numHard;
    for (SearchEffort effort : {SearchEffort::Some, SearchEffort::Much})
      EXPECT_GE(placeBlocks(again, effort, much - 64), much);
  }
  EXPECT_GT(numHard, 0);
}

/// Blocks cut out of a full rectangle: there is a plan without any gap.
TEST(PlacementTests, FindsAPlanWithoutGaps) {
  std::mt19937 random(5);
  constexpr int64_t kSteps = 40, kBytes = 64 * 64;
  std::vector<MemoryBlock> blocks{{kBytes, 0, kSteps - 1}};
  while (blocks.size() < 60) {
    size_t i = random() % blocks.size();
    MemoryBlock block = blocks[i], other = block;
    if (random() % 2 && block.end > block.begin) {
      int64_t at = block.begin + random() % (block.end - block.begin);
      block.end = at;
      other.begin = at + 1;
    } else if (block.bytes > 64) {
      block.bytes = 64 * (1 + random() % (block.bytes / 64 - 1));
      other.bytes -= block.bytes;
    } else {
      continue;
    }
    blocks[i] = block;
    blocks.push_back(other);
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  ASSERT_EQ(getLargestLiveSet(blocks), kBytes);
  int64_t arena = placeBlocks(blocks, SearchEffort::Much);
  expectPlaced(blocks, arena);
  EXPECT_LE(arena, kBytes * 105 / 100);
}

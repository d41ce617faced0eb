//===- ArenaSearchTests.cpp - blocks of memory for stretches of time --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ArenaSearch.h"
#include "meshwright/passes/schedule/PlacedBlocks.h"

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

TEST(ArenaSearchTests, NothingToPlace) {
  std::vector<MemoryBlock> none, one{{192, 3, 3}};
  EXPECT_EQ(assignOffsets(none, SearchEffort::Much), 0);
  EXPECT_EQ(getLargestLiveSet(none), 0);
  EXPECT_EQ(assignOffsets(one, SearchEffort::Some), 192);
}

TEST(ArenaSearchTests, RandomBlocks) {
  std::mt19937 random(11);
  int64_t numHard = 0;
  for (int round = 0; round < 200 && numHard == 0; ++round) {
    std::vector<MemoryBlock> blocks = makeBlocks(random), again = blocks;
    int64_t some = assignOffsets(blocks, SearchEffort::Some);
    expectPlaced(blocks, some);
    int64_t much = assignOffsets(blocks, SearchEffort::Much);
    expectPlaced(blocks, much);
    EXPECT_LE(much, some);
    // The same from anew, and what is known to be had is had.
    EXPECT_EQ(assignOffsets(again, SearchEffort::Much), much);
    for (size_t i = 0; i < blocks.size(); ++i)
      EXPECT_EQ(again[i].offset, blocks[i].offset);
    EXPECT_LE(assignOffsets(again, SearchEffort::Much, much), much);
    int64_t enough = assignOffsets(again, SearchEffort::Much, 2 * much);
    expectPlaced(again, enough);
    EXPECT_LE(enough, 2 * much);
    // Nothing below it is found by stopping earlier.
    if (int64_t live = getLargestLiveSet(blocks); much <= live + live / 100)
      continue;
    ++numHard;
    for (SearchEffort effort : {SearchEffort::Some, SearchEffort::Much})
      EXPECT_GE(assignOffsets(again, effort, much - 64), much);
  }
  EXPECT_GT(numHard, 0);
}

/// Two layers of a vision transformer with sequence parallelism, whose sizes nearly, not
/// quite, are multiples of each other. The simple orders end 9 % above what is needed.
TEST(ArenaSearchTests, FindsWhatSimpleOrdersMiss) {
  std::vector<MemoryBlock> blocks{
      {9504, 0, 28},   {9504, 0, 13},   {19008, 1, 14},  {9456, 3, 7},    {9456, 4, 6},
      {9456, 6, 7},    {9456, 7, 8},    {9456, 8, 10},   {18912, 10, 11}, {19008, 11, 17},
      {9504, 12, 18},  {18912, 14, 16}, {37824, 16, 21}, {9504, 18, 40},  {9504, 18, 24},
      {19008, 19, 25}, {18912, 21, 22}, {19008, 22, 27}, {9504, 23, 28},  {18912, 25, 26},
      {37824, 26, 30}, {9504, 28, 63},  {9504, 28, 33},  {19008, 29, 34}, {18912, 30, 31},
      {19008, 31, 39}, {9504, 32, 40},  {18912, 34, 47}, {9456, 36, 38},  {9456, 38, 50},
      {9504, 40, 82},  {9504, 40, 57},  {19008, 41, 58}, {9456, 43, 45},  {9456, 45, 50},
      {9456, 47, 49},  {9456, 49, 50},  {9456, 50, 51},  {9456, 51, 54},  {18912, 54, 55},
      {19008, 55, 62}, {9504, 56, 63}};
  for (MemoryBlock &block : blocks)
    block.bytes *= 64;
  for (SearchEffort effort : {SearchEffort::Some, SearchEffort::Much}) {
    int64_t arena = assignOffsets(blocks, effort), live = getLargestLiveSet(blocks);
    expectPlaced(blocks, arena);
    EXPECT_LE(arena, live + live / 100);
  }
}

/// Very many at once: what would take too long is not begun.
TEST(ArenaSearchTests, ManyAtOnce) {
  std::vector<MemoryBlock> blocks;
  for (int64_t i = 0; i < 1500; ++i)
    blocks.push_back({64 * (1 + i * 7919 % 97), i, i + 700});
  int64_t arena = assignOffsets(blocks, SearchEffort::Much);
  expectPlaced(blocks, arena);
  EXPECT_LE(arena, getLargestLiveSet(blocks) * 2);
}

/// Blocks cut out of a full rectangle: there is a plan without any gap.
TEST(ArenaSearchTests, NearlyFindsAPlanWithoutGaps) {
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
  int64_t arena = assignOffsets(blocks, SearchEffort::Much);
  expectPlaced(blocks, arena);
  EXPECT_LE(arena, kBytes * 105 / 100);
}

/// The lowest gap, by a look at every block that is placed.
int64_t findLowest(const std::vector<MemoryBlock> &placed, const MemoryBlock &block) {
  std::vector<const MemoryBlock *> beside;
  for (const MemoryBlock &other : placed)
    if (other.begin <= block.end && block.begin <= other.end)
      beside.push_back(&other);
  std::sort(beside.begin(), beside.end(), [](auto *a, auto *b) { return a->offset < b->offset; });
  int64_t end = 0;
  for (const MemoryBlock *other : beside) {
    if (other->offset - end >= block.bytes)
      return end;
    end = std::max(end, other->offset + other->bytes);
  }
  return end;
}

TEST(ArenaSearchTests, LongAndShortBlocksTakeTheLowestGap) {
  for (int seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    int64_t steps = 200 + random() % 6000;
    std::vector<MemoryBlock> blocks, placed;
    for (int i = 0; i < 700; ++i) {
      int64_t most = random() % 3 == 0 ? steps : 1 + random() % 300;
      int64_t begin = random() % steps, end = std::min<int64_t>(begin + random() % most, steps - 1);
      blocks.push_back({64 * int64_t(1 + random() % 50), begin, end});
    }
    // One block alone stays to the end: blocks that do are stacked if they are many.
    blocks.push_back({64, 0, steps});
    PlacedBlocks search(blocks);
    for (MemoryBlock block : blocks) {
      block.offset = search.place(block);
      ASSERT_EQ(block.offset, findLowest(placed, block)) << "seed " << seed << ", block " << placed.size();
      placed.push_back(block);
    }
  }
}

//===- MemoryTests.cpp - large arrays --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Memory.h"

#include "gtest/gtest.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <vector>

using namespace meshwright::rt;

namespace {

constexpr int64_t kMiB = 1 << 20;

/// Bytes of huge pages in mappings within these addresses.
int64_t countHuge(const char *data, int64_t bytes) {
  std::ifstream file("/proc/self/smaps");
  auto first = reinterpret_cast<uintptr_t>(data), last = first + bytes;
  uintptr_t begin = 0, end = 0;
  int64_t huge = 0;
  for (std::string line; std::getline(file, line);) {
    char dash;
    std::istringstream words(line);
    if (uintptr_t from, to; words >> std::hex >> from >> dash >> to && dash == '-')
      begin = from, end = to;
    else if (line.rfind("AnonHugePages:", 0) == 0 && begin < last && first < end)
      huge += std::stoll(line.substr(14)) * 1024;
  }
  return huge;
}

/// Returns true if the system gives huge pages to those who ask, for as much as this: it may
/// have none, or none left.
bool hasHugePages(int64_t bytes) {
  void *mapped =
      mmap(nullptr, bytes + 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(mapped, bytes + 2 * kMiB, MADV_HUGEPAGE);
  std::memset(mapped, 1, bytes + 2 * kMiB);
  bool has = countHuge(static_cast<char *>(mapped), bytes + 2 * kMiB) >= bytes;
  munmap(mapped, bytes + 2 * kMiB);
  return has;
}

TEST(MemoryTest, IsAlignedAndWritable) {
  for (int64_t bytes :
       {int64_t(0), int64_t(1), int64_t(100), 2 * kMiB - 1, 2 * kMiB, 5 * kMiB + 3}) {
    Memory memory = allocate(bytes);
    ASSERT_TRUE(memory);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % kAlignment, 0u);
    std::memset(memory.get(), 7, bytes);
    std::shared_ptr<const void> shared = std::move(memory);
  }
}

TEST(MemoryTest, IsNullWhereThereIsNone) {
  for (int64_t bytes : {INT64_MAX, INT64_MAX - 4 * kMiB, INT64_MAX / 2})
    EXPECT_FALSE(allocate(bytes));
}

TEST(MemoryTest, LargeArraysLieInHugePagesWhateverWasFreed) {
  // Once it has seen large blocks come and go, the C library keeps their pages,
  // which are small, and gives them again.
  constexpr int64_t bytes = 24 * kMiB;
  if (!hasHugePages(bytes))
    GTEST_SKIP() << "no huge pages";
  std::vector<void *> blocks{std::malloc(30 * kMiB)};
  *static_cast<volatile char *>(blocks[0]) = 1;
  std::free(blocks[0]);
  blocks.clear();
  for (int i = 0; i < 4; ++i)
    blocks.push_back(std::memset(std::malloc(bytes + 2 * kMiB), 1, bytes + 2 * kMiB));
  // The last one holds the end of the heap.
  for (int i = 0; i < 3; ++i)
    std::free(blocks[i]);
  Memory memory = allocate(bytes);
  std::memset(memory.get(), 1, bytes);
  // They may have been used up meanwhile.
  if (int64_t huge = countHuge(memory.get(), bytes); hasHugePages(bytes))
    EXPECT_GE(huge, bytes);
  std::free(blocks.back());
}

TEST(MemoryTest, GathersPagesThatAreInMemory) {
  constexpr int64_t bytes = 10 * kMiB;
  void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto *data = static_cast<char *>(mapped);
  auto at = reinterpret_cast<uintptr_t>(data);
  // The first whole huge page has a small one that nothing touched.
  char *first = data + (2 * kMiB - at % (2 * kMiB)) % (2 * kMiB);
  for (int64_t i = 0; i < bytes; i += 4096)
    if (data + i != first + 4096)
      data[i] = char(i / 4096 + 1);
  int64_t before = countHuge(data, bytes);
  gatherPages(data + 100, bytes - 200);
  gatherPages(data, 0);
  for (int64_t i = 0; i < bytes; i += 4096)
    if (data + i != first + 4096)
      ASSERT_EQ(data[i], char(i / 4096 + 1));
  int64_t gathered = countHuge(data, bytes) - before;
  munmap(mapped, bytes);
  if (before > 0 || gathered == 0)
    GTEST_SKIP() << "the system gathers no pages, or gives huge ones at once";
  EXPECT_GE(gathered, 4 * kMiB);
  EXPECT_LE(gathered, 6 * kMiB);
}

} // namespace

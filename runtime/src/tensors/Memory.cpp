//===- Memory.cpp - large arrays ------------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace meshwright::rt {

void FreeMemory::operator()(char *data) const {
  if (mappedBytes)
    munmap(data, mappedBytes);
  else
    std::free(data);
}

static constexpr int64_t kHugePage = 2 << 20;

static int64_t roundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Maps whole huge pages, at a multiple of their size.
static Memory map(int64_t bytes) {
  bytes = roundUp(bytes, kHugePage);
  void *mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return nullptr;
  auto *first = static_cast<char *>(mapped);
  int64_t before =
      roundUp(reinterpret_cast<intptr_t>(first), kHugePage) - reinterpret_cast<intptr_t>(first);
  char *data = first + before;
  if (before)
    munmap(first, before);
  if (before < kHugePage)
    munmap(data + bytes, kHugePage - before);
  // The system may refuse this request; pages are small then.
  madvise(data, bytes, MADV_HUGEPAGE);
  return Memory(data, FreeMemory{bytes});
}

Memory allocate(int64_t bytes) {
  if (bytes > INT64_MAX - 2 * kHugePage)
    return nullptr;
  if (bytes >= kHugePage)
    return map(bytes);
  bytes = roundUp(std::max<int64_t>(bytes, 1), kAlignment);
  return Memory(static_cast<char *>(std::aligned_alloc(kAlignment, bytes)));
}

void gatherPages(const void *data, int64_t bytes) {
  // MADV_COLLAPSE, which older headers lack.
  constexpr int kCollapse = 25;
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> isPresent(kHugePage / page);
  auto address = reinterpret_cast<intptr_t>(data);
  auto isWhole = [&](intptr_t at) {
    return mincore(reinterpret_cast<void *>(at), kHugePage, isPresent.data()) == 0 &&
           std::all_of(isPresent.begin(), isPresent.end(), [](unsigned char bits) { return bits & 1; });
  };
  for (intptr_t at = roundUp(address, kHugePage); at + kHugePage <= address + bytes;) {
    intptr_t first = at;
    while (at + kHugePage <= address + bytes && isWhole(at))
      at += kHugePage;
    if (first < at && madvise(reinterpret_cast<void *>(first), at - first, kCollapse) != 0)
      return;
    at = std::max(at, first + kHugePage);
  }
}

int64_t availableMemory() {
  int64_t available = -1;
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  while (meminfo >> word)
    if (word == "MemAvailable:") {
      int64_t kilobytes = 0;
      if (meminfo >> kilobytes)
        available = kilobytes * 1024;
      break;
    }
  // A container may have less memory than the machine. Pages of files do not count as used: the
  // system gives them up when memory is needed.
  std::ifstream maxFile("/sys/fs/cgroup/memory.max"), usedFile("/sys/fs/cgroup/memory.current"),
      statistics("/sys/fs/cgroup/memory.stat");
  int64_t most = 0, used = 0, bytes = 0;
  if (!(maxFile >> most && usedFile >> used))
    return available;
  while (statistics >> word >> bytes)
    if (word == "inactive_file" || word == "active_file")
      used -= bytes;
  if (available < 0 || most - used < available)
    available = std::max<int64_t>(most - used, 0);
  return available;
}

std::string formatBytes(int64_t bytes) {
  const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = bytes;
  int unit = 0;
  for (; value >= 1024 && unit < 5; ++unit)
    value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

} // namespace meshwright::rt

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
#include <sys/mman.h>

namespace meshwright::rt {

void FreeMemory::operator()(char *data) const { std::free(data); }

Memory allocate(int64_t bytes) {
  constexpr int64_t hugePage = 2 << 20;
  bytes = std::max<int64_t>(bytes, 1);
  int64_t alignment = bytes >= hugePage ? hugePage : kAlignment;
  if (bytes > INT64_MAX - alignment)
    return nullptr;
  bytes = (bytes + alignment - 1) / alignment * alignment;
  Memory memory(static_cast<char *>(std::aligned_alloc(alignment, bytes)));
  // A request: where it is refused, pages are small.
  if (memory && alignment == hugePage)
    madvise(memory.get(), bytes, MADV_HUGEPAGE);
  return memory;
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

//===- Memory.h - large arrays --------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_MEMORY_H
#define MESHWRIGHT_RUNTIME_INCLUDE_MEMORY_H

#include <cstdint>
#include <memory>
#include <string>

namespace meshwright::rt {

/// The alignment of programs' buffers in bytes: that of a cache line and of any vector.
constexpr int64_t kAlignment = 64;

struct FreeMemory {
  /// The size of the mapping; 0 if the memory is the C library's.
  int64_t mappedBytes = 0;
  void operator()(char *data) const;
};
using Memory = std::unique_ptr<char, FreeMemory>;

/// Allocates memory that is aligned to `kAlignment`. Returns null if there is none. Large memory
/// is mapped afresh, in huge pages if the system has them: memory that the C library hands out
/// again may be in small pages, which are read at half the rate.
Memory allocate(int64_t bytes);

/// Asks the system to bring memory that other code allocated to huge pages, in its place. Takes whole huge
/// pages of which all is in memory, and copies them once. Has no effect where the system cannot (Linux
/// before 6.1, and files on most systems).
void gatherPages(const void *data, int64_t bytes);

/// Bytes of memory that this process can still get, or -1 if unknown.
int64_t availableMemory();

/// "1.5 GiB".
std::string formatBytes(int64_t bytes);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_MEMORY_H

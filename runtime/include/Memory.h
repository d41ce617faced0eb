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

/// Buffers of programs are aligned to this, in bytes: a cache line, and any
/// vector.
constexpr int64_t kAlignment = 64;

struct FreeMemory {
  /// Of the mapping; 0 where it is the C library's.
  int64_t mappedBytes = 0;
  void operator()(char *data) const;
};
using Memory = std::unique_ptr<char, FreeMemory>;

/// Memory aligned to `kAlignment`. What is large is fresh from the system, in huge
/// pages where it has them: what the C library gives a second time may lie in
/// small ones, which are read at half the rate. Null where there is none.
Memory allocate(int64_t bytes);

/// Bytes of memory that this process can still get, or -1 if unknown.
int64_t availableMemory();

/// "1.5 GiB".
std::string formatBytes(int64_t bytes);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_MEMORY_H

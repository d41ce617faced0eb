//===- Hash.cpp - checksums of files --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/src/bundle/Manifest.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace meshwright::rt {

void Hash::add(const char *data, int64_t size) {
  for (int64_t at = 0; at < size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<int64_t>(8, size - at));
    // Each step is invertible, so different words never lead to the same state.
    state = (state ^ word) * 0x9e3779b97f4a7c15;
    state ^= state >> 32;
  }
}

std::string Hash::get() const {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(state));
  return text;
}

std::string hashOf(const char *data, int64_t size) {
  Hash hash;
  hash.add(data, size);
  return hash.get();
}

} // namespace meshwright::rt

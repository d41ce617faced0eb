//===- Purpose.cpp - the runs to which processes come ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Purpose.h"

#include <cstring>

namespace meshwright::rt {

static constexpr int kIdBytes = 32;

void writePurpose(const World &world, char *to) {
  std::memset(to, 0, kPurposeBytes);
  world.getBundle().copy(to, kIdBytes);
  world.getPurpose().copy(to + kIdBytes, kPurposeBytes - kIdBytes);
}

std::string comparePurposes(const char *all, int64_t numRanks) {
  auto read = [&](int64_t rank, int offset, int size) {
    const char *text = all + rank * kPurposeBytes + offset;
    return std::string(text, strnlen(text, size));
  };
  auto getBundle = [&](int64_t rank) {
    std::string id = read(rank, 0, kIdBytes);
    return id.empty() ? "no bundle" : "bundle " + id;
  };
  auto getPurpose = [&](int64_t rank) { return read(rank, kIdBytes, kPurposeBytes - kIdBytes); };
  for (int64_t rank = 1; rank < numRanks; ++rank) {
    std::string whose = "rank " + std::to_string(rank) + ": expected to run ";
    if (getBundle(rank) != getBundle(0))
      return whose + getBundle(0) + " as on rank 0, got " + getBundle(rank) +
             ": all processes run the same one, or copies of it";
    if (getPurpose(rank) != getPurpose(0))
      return whose + getPurpose(0) + " as on rank 0, got " + getPurpose(rank) +
             ": all processes make the same calls in the same order";
  }
  return "";
}

} // namespace meshwright::rt

//===- Purpose.h - the runs to which processes come -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_PURPOSE_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_PURPOSE_H

#include "meshwright/runtime/include/World.h"

#include <string>

namespace meshwright::rt {

/// The bytes that processes exchange before a run: the id of a world's bundle, and the purpose of
/// the run.
constexpr int kPurposeBytes = 160;

void writePurpose(const World &world, char *to);
/// Compares what the processes wrote, by rank. Returns an empty string, or the error of all
/// processes if one of them runs another bundle or comes with another purpose.
std::string comparePurposes(const char *all, int64_t numRanks);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_PURPOSE_H

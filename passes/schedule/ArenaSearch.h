//===- ArenaSearch.h - blocks of memory for stretches of time -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_ARENASEARCH_H
#define MESHWRIGHT_PASSES_SCHEDULE_ARENASEARCH_H

#include "mlir/Support/LLVM.h"
#include "llvm/ADT/ArrayRef.h"

#include <cstdint>

namespace meshwright {

/// Bytes that are needed from one step to another, both included: more than 0, in steps
/// from 0 on. What is needed at one step has a sum below 2^62.
struct MemoryBlock {
  int64_t bytes;
  int64_t begin, end;
  int64_t offset = 0;
};

/// The largest sum of what is needed at one step: no arena is smaller.
int64_t getLargestLiveSet(mlir::ArrayRef<MemoryBlock> blocks);

/// How long a better placement is looked for, at most: for some hundreds of blocks, ten
/// of them at a time, tens of milliseconds, or hundreds.
enum class SearchEffort { Some, Much };

/// Gives the blocks offsets, multiples of what divides all their sizes, so that those
/// that are needed at one step do not overlap. Returns the bytes of all of them together.
/// That is as small as a search finds, which ends where it is at most `enough`, or within
/// a hundredth of the largest live set. The same blocks get the same offsets, on all
/// machines; with less `enough`, or more effort, an arena that is no larger.
int64_t assignOffsets(mlir::MutableArrayRef<MemoryBlock> blocks, SearchEffort effort,
                    int64_t enough = 0);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_ARENASEARCH_H

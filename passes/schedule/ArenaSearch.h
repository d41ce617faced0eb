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

/// A block of memory: `bytes` (above 0) are needed from step `begin` to step `end`, both
/// included and from 0 on. The sum over the blocks of one step is below 2^62.
struct MemoryBlock {
  int64_t bytes;
  int64_t begin, end;
  int64_t offset = 0;
};

/// The largest sum of the blocks of one step. No arena is smaller.
int64_t getLargestLiveSet(mlir::ArrayRef<MemoryBlock> blocks);

/// The budget of a search. For some hundreds of blocks, ten of them alive at a time, it
/// is tens of milliseconds (Some) or hundreds (Much).
enum class SearchEffort { Some, Much };

/// Assigns offsets to the blocks and returns the size of the arena. Guarantees:
///  - blocks of one step do not overlap;
///  - offsets are multiples of the greatest common divisor of all sizes;
///  - the same blocks get the same offsets on all machines;
///  - a smaller `enough` or more effort never gives a larger arena.
/// The search ends when the arena is at most `enough`, or within a hundredth of the
/// largest live set.
int64_t assignOffsets(mlir::MutableArrayRef<MemoryBlock> blocks, SearchEffort effort,
                    int64_t enough = 0);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_ARENASEARCH_H

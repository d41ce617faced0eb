//===- PlacedBlocks.h - the lowest gap for a block of memory ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PLACEDBLOCKS_H
#define MESHWRIGHT_PASSES_SCHEDULE_PLACEDBLOCKS_H

#include "meshwright/passes/schedule/ArenaSearch.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"

#include <vector>

namespace meshwright {

/// Gives each block the lowest gap between the blocks before it that are needed at the same time.
///
/// A search through all of these blocks would take time that grows with the square of their number. So
/// they are in lists of spans of time, by their offsets. A walk along the lists of a block's spans ends at
/// the first gap. A block of many spans is in the lists of the first and the last. Groups of the spans
/// between them have its range, so a block costs the logarithm of the time that it is needed for.
class PlacedBlocks {
public:
  explicit PlacedBlocks(llvm::ArrayRef<MemoryBlock> blocks);

  /// Returns the offset of the block, which is among those of the constructor.
  int64_t place(const MemoryBlock &block);

private:
  /// The steps of a span.
  static constexpr int64_t kSpan = 64;
  static constexpr int64_t kFanOut = 8;
  /// A block of more spans is long.
  static constexpr int64_t kFewSpans = 4;
  /// So many blocks that stay to the end have a floor.
  static constexpr size_t kManyLast = 64;

  struct Placed {
    int64_t offset, top, begin, end;
    bool isBeside(const MemoryBlock &block) const {
      return begin <= block.end && block.begin <= end;
    }
  };
  using List = std::vector<Placed>;
  struct Range {
    int64_t begin, end;
  };

  static void add(std::vector<Range> &ranges, Range own);
  static bool isLong(const MemoryBlock &block) {
    return block.end / kSpan - block.begin / kSpan >= kFewSpans;
  }
  llvm::SmallVector<int64_t> getListed(const MemoryBlock &block) const;
  template <typename Visit>
  void forEachAround(llvm::SmallVector<int64_t> inside, Visit visit) const;
  int64_t findGap(const MemoryBlock &block) const;
  int64_t getFloor(const MemoryBlock &block) const;

  int64_t last = 0;
  std::vector<List> spans;
  /// The ranges of offsets in groups of one span, of kFanOut spans, and so on. Ranges that touch are one,
  /// so there are few. `taken` has the ranges of all blocks that are needed at any time of a group, but for
  /// long ones that cover a group around it. `covered` has the ranges of long blocks, each in the largest
  /// groups that it covers.
  std::vector<std::vector<std::vector<Range>>> taken, covered;
  /// Blocks that stay to the end are stacked at the bottom, by their first steps: `begins` has these in
  /// order, and `heights` the bytes of the stack up to each. Another block is placed above the part of the
  /// stack that begins before the block ends.
  std::vector<int64_t> begins, heights;
  /// For each first step, the bytes of the stacked blocks that have an offset already.
  llvm::DenseMap<int64_t, int64_t> stacked;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PLACEDBLOCKS_H

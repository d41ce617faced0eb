//===- PlacedBlocks.cpp - the lowest gap for a block of memory ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/PlacedBlocks.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Sequence.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>

using namespace mlir;
using namespace meshwright;
using llvm::ArrayRef;

PlacedBlocks::PlacedBlocks(ArrayRef<MemoryBlock> blocks) {
  for (const MemoryBlock &block : blocks)
    last = std::max(last, block.end);
  spans.resize(last / kSpan + 1);
  for (size_t count = spans.size();; count = llvm::divideCeil(count, kFanOut)) {
    taken.emplace_back(count);
    covered.emplace_back(count);
    if (count == 1)
      break;
  }
  std::vector<std::pair<int64_t, int64_t>> stay;
  for (const MemoryBlock &block : blocks)
    if (block.end == last)
      stay.emplace_back(block.begin, block.bytes);
  if (stay.size() < kManyLast)
    return;
  llvm::sort(stay);
  int64_t height = 0;
  for (auto [begin, bytes] : stay) {
    begins.push_back(begin);
    heights.push_back(height += bytes);
  }
}

/// The bytes below which the blocks are that stay to the end and begin before `block` ends.
int64_t PlacedBlocks::getFloor(const MemoryBlock &block) const {
  auto above = llvm::upper_bound(begins, block.end);
  return above == begins.begin() ? 0 : heights[above - begins.begin() - 1];
}

/// Adds a range to others, which do not touch each other.
void PlacedBlocks::add(std::vector<Range> &ranges, Range own) {
  auto first = llvm::lower_bound(
      ranges, own, [](const Range &a, const Range &b) { return a.end < b.begin; });
  auto behind = first;
  for (; behind != ranges.end() && behind->begin <= own.end; ++behind)
    own = {std::min(own.begin, behind->begin), std::max(own.end, behind->end)};
  if (first == behind) {
    ranges.insert(first, own);
    return;
  }
  *first = own;
  ranges.erase(first + 1, behind);
}

/// Visits the largest groups of spans within the spans from one to another, as levels and indices.
template <typename Visit>
static void forEachWithin(int64_t from, int64_t to, int64_t fanOut, Visit visit) {
  for (size_t level = 0; from <= to; ++level) {
    for (; from <= to && from % fanOut != 0; ++from)
      visit(level, from);
    for (; from <= to && (to + 1) % fanOut != 0; --to)
      visit(level, to);
    if (from > to)
      return;
    from /= fanOut;
    to /= fanOut;
  }
}

/// The spans whose lists have the block: all that it is needed in, or the first and the last of many.
SmallVector<int64_t> PlacedBlocks::getListed(const MemoryBlock &block) const {
  int64_t from = block.begin / kSpan, to = block.end / kSpan;
  if (to - from >= kFewSpans)
    return {from, to};
  return llvm::to_vector(llvm::seq<int64_t>(from, to + 1));
}

/// Visits the groups of all levels that have one of the spans.
template <typename Visit>
void PlacedBlocks::forEachAround(SmallVector<int64_t> inside, Visit visit) const {
  for (size_t level = 0; level < taken.size(); ++level) {
    inside.erase(llvm::unique(inside), inside.end());
    for (int64_t &i : inside) {
      visit(level, i);
      i /= kFanOut;
    }
  }
}

int64_t PlacedBlocks::place(const MemoryBlock &block) {
  if (!begins.empty() && block.end == last) {
    // Those of one step are taken in any order.
    auto first = llvm::lower_bound(begins, block.begin);
    int64_t &height = stacked.try_emplace(block.begin, 0).first->second;
    int64_t below = first == begins.begin() ? 0 : heights[first - begins.begin() - 1];
    height += block.bytes;
    return below + height - block.bytes;
  }
  int64_t offset = findGap(block);
  Placed own{offset, offset + block.bytes, block.begin, block.end};
  auto insert = [&](List &list) {
    list.insert(llvm::upper_bound(list, own,
                                  [](const Placed &a, const Placed &b) { return a.offset < b.offset; }),
                own);
  };
  SmallVector<int64_t> listed = getListed(block);
  for (int64_t i : listed)
    insert(spans[i]);
  Range range{own.offset, own.top};
  forEachAround(listed, [&](size_t level, int64_t i) { add(taken[level][i], range); });
  if (isLong(block))
    forEachWithin(listed.front() + 1, listed.back() - 1, kFanOut, [&](size_t level, int64_t i) {
      add(taken[level][i], range);
      add(covered[level][i], range);
    });
  return offset;
}

/// The lists are in the order of their first bytes. Each is read up to the present offset, which a range that is
/// in the way raises to its end, until none of the lists has such a range.
int64_t PlacedBlocks::findGap(const MemoryBlock &block) const {
  SmallVector<int64_t> listed = getListed(block);
  SmallVector<ArrayRef<Range>, 32> ranges;
  auto append = [&](const std::vector<Range> &own) {
    if (!own.empty())
      ranges.push_back(own);
  };
  if (isLong(block))
    forEachWithin(listed.front() + 1, listed.back() - 1, kFanOut,
                  [&](size_t level, int64_t i) { append(taken[level][i]); });
  forEachAround(listed, [&](size_t level, int64_t i) { append(covered[level][i]); });
  SmallVector<ArrayRef<Placed>> lists;
  for (int64_t i : listed)
    lists.push_back(spans[i]);
  int64_t offset = getFloor(block);
  for (int64_t before = -1; before != offset;) {
    before = offset;
    for (ArrayRef<Range> &list : ranges)
      for (; !list.empty() && list.front().begin < offset + block.bytes; list = list.drop_front())
        offset = std::max(offset, list.front().end);
    for (ArrayRef<Placed> &list : lists)
      for (; !list.empty() && list.front().offset < offset + block.bytes; list = list.drop_front())
        if (list.front().isBeside(block))
          offset = std::max(offset, list.front().top);
  }
  return offset;
}

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

int64_t PlacedBlocks::findGap(const MemoryBlock &block) const {
  SmallVector<int64_t> listed = getListed(block);
  auto isBelow = [](const Range &a, const Range &b) { return a.begin < b.begin; };
  std::vector<Range> beside;
  auto append = [&](const std::vector<Range> &ranges) {
    return beside.insert(beside.end(), ranges.begin(), ranges.end());
  };
  if (isLong(block))
    forEachWithin(listed.front() + 1, listed.back() - 1, kFanOut,
                  [&](size_t level, int64_t i) { append(taken[level][i]); });
  llvm::sort(beside, isBelow);
  forEachAround(listed, [&](size_t level, int64_t i) {
    auto added = append(covered[level][i]);
    std::inplace_merge(beside.begin(), added, beside.end(), isBelow);
  });
  // A merge of the ranges and the lists. A block may be in several.
  auto nextRange = beside.begin();
  SmallVector<List::const_iterator> next;
  for (int64_t i : listed)
    next.push_back(spans[i].begin());
  int64_t end = getFloor(block);
  while (true) {
    size_t lowest = listed.size();
    for (size_t i = 0; i < listed.size(); ++i)
      if (next[i] != spans[listed[i]].end() &&
          (lowest == listed.size() || next[i]->offset < next[lowest]->offset))
        lowest = i;
    Range range;
    if (nextRange != beside.end() &&
        (lowest == listed.size() || nextRange->begin <= next[lowest]->offset)) {
      range = *nextRange++;
    } else if (lowest == listed.size()) {
      return end;
    } else {
      const Placed &other = *next[lowest]++;
      if (!other.isBeside(block))
        continue;
      range = {other.offset, other.top};
    }
    if (range.begin - end >= block.bytes)
      return end;
    end = std::max(end, range.end);
  }
}

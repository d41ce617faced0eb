//===- PlacedBlocks.cpp - the lowest gap for a block of memory ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/PlacedBlocks.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using llvm::ArrayRef;

PlacedBlocks::PlacedBlocks(ArrayRef<MemoryBlock> blocks) {
  for (const MemoryBlock &block : blocks)
    last = std::max(last, block.end);
  spans.resize(last / kSpan + 1);
  for (size_t count = spans.size();; count = llvm::divideCeil(count, kFanOut)) {
    taken.emplace_back(count);
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

/// Takes a range in spans from one to another, and in all groups that have them.
void PlacedBlocks::take(int64_t from, int64_t to, Range own) {
  for (auto &level : taken) {
    for (int64_t i = from; i <= to; ++i)
      add(level[i], own);
    from /= kFanOut;
    to /= kFanOut;
  }
}

/// Visits the ranges that are taken in spans from one to another, by the largest groups within them.
template <typename Visit>
void PlacedBlocks::forEachTaken(int64_t from, int64_t to, Visit visit) const {
  for (const auto &level : taken) {
    auto visitOne = [&](int64_t i) {
      for (const Range &range : level[i])
        visit(range);
    };
    bool isLast = &level == &taken.back();
    for (; from <= to && (isLast || from % kFanOut != 0); ++from)
      visitOne(from);
    for (; from <= to && (to + 1) % kFanOut != 0; --to)
      visitOne(to);
    if (from > to)
      return;
    from /= kFanOut;
    to /= kFanOut;
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
  int64_t from = block.begin / kSpan, to = block.end / kSpan;
  if (to - from >= kFewSpans) {
    insert(longer);
    return offset;
  }
  for (int64_t i = from; i <= to; ++i)
    insert(spans[i]);
  take(from, to, {own.offset, own.top});
  return offset;
}

int64_t PlacedBlocks::findGap(const MemoryBlock &block) const {
  int64_t from = block.begin / kSpan, to = block.end / kSpan;
  if (to - from >= kFewSpans)
    return findGapOfMany(block);
  SmallVector<const List *> lists{&longer};
  for (int64_t i = from; i <= to; ++i)
    lists.push_back(&spans[i]);
  // A merge of the lists. A block may be in several.
  SmallVector<List::const_iterator> next;
  for (const List *list : lists)
    next.push_back(list->begin());
  int64_t end = getFloor(block);
  while (true) {
    size_t lowest = lists.size();
    for (size_t i = 0; i < lists.size(); ++i)
      if (next[i] != lists[i]->end() &&
          (lowest == lists.size() || next[i]->offset < next[lowest]->offset))
        lowest = i;
    if (lowest == lists.size())
      return end;
    const Placed &other = *next[lowest]++;
    if (!other.isBeside(block))
      continue;
    if (other.offset - end >= block.bytes)
      return end;
    end = std::max(end, other.top);
  }
}

int64_t PlacedBlocks::findGapOfMany(const MemoryBlock &block) const {
  int64_t from = block.begin / kSpan, to = block.end / kSpan;
  std::vector<Range> beside;
  for (int64_t i : {from, to})
    for (const Placed &other : spans[i])
      if (other.isBeside(block))
        beside.push_back({other.offset, other.top});
  forEachTaken(from + 1, to - 1, [&](const Range &range) { beside.push_back(range); });
  llvm::sort(beside, [](const Range &a, const Range &b) { return a.begin < b.begin; });
  int64_t end = getFloor(block);
  // Returns true if the gap below a range is large enough.
  auto isAbove = [&](const Range &range) {
    if (range.begin - end >= block.bytes)
      return true;
    end = std::max(end, range.end);
    return false;
  };
  auto next = beside.begin();
  for (const Placed &other : longer) {
    if (!other.isBeside(block))
      continue;
    for (; next != beside.end() && next->begin <= other.offset; ++next)
      if (isAbove(*next))
        return end;
    if (isAbove({other.offset, other.top}))
      return end;
  }
  for (; next != beside.end(); ++next)
    if (isAbove(*next))
      return end;
  return end;
}

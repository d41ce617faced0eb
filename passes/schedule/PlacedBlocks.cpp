//===- PlacedBlocks.cpp - the lowest gap for a block of memory ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/PlacedBlocks.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

using namespace mlir;
using namespace meshwright;
using llvm::ArrayRef;

PlacedBlocks::PlacedBlocks(ArrayRef<MemoryBlock> blocks) : spans(kSpans) {
  for (const MemoryBlock &block : blocks)
    last = std::max(last, block.end);
  span = last / kSpans + 1;
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
  int64_t from = block.begin / span, to = block.end / span;
  if (to - from >= kFewSpans)
    insert(longer);
  else
    for (int64_t i = from; i <= to; ++i)
      insert(spans[i]);
  return offset;
}

int64_t PlacedBlocks::findGap(const MemoryBlock &block) const {
  SmallVector<const List *> lists{&longer};
  for (int64_t i = block.begin / span; i <= block.end / span; ++i)
    lists.push_back(&spans[i]);
  int64_t end = getFloor(block);
  if (int64_t(lists.size()) > kFewSpans + 1)
    return findGapOfMany(block, lists, end);
  // A merge of the lists. A block may be in several.
  SmallVector<List::const_iterator> next;
  for (const List *list : lists)
    next.push_back(list->begin());
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

int64_t PlacedBlocks::findGapOfMany(const MemoryBlock &block, ArrayRef<const List *> lists,
                                    int64_t end) const {
  std::vector<std::pair<int64_t, int64_t>> beside;
  for (const List *list : lists)
    for (const Placed &other : *list)
      if (other.isBeside(block))
        beside.emplace_back(other.offset, other.top);
  llvm::sort(beside);
  for (auto [offset, top] : beside) {
    if (offset - end >= block.bytes)
      break;
    end = std::max(end, top);
  }
  return end;
}

//===- Placement.cpp - blocks of memory for stretches of time -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// There are two ways to place blocks, each led by an order of them. By gaps: one by
// one, each in the lowest gap among those that are needed at the same time. On a
// skyline, the height of what is placed at each step: where it is lowest comes the
// first block that fits between what is higher on both sides; if none does, that part
// is raised to its lower neighbour. The skyline is better as it comes, by gaps an
// order can express every plan. A search moves blocks that are in the way of the one
// on top elsewhere in the order, and goes on from there if that is no worse.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Placement.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <iterator>
#include <limits>
#include <list>
#include <numeric>
#include <random>
#include <vector>

using namespace mlir;
using namespace meshwright;

/// Pairs of blocks, and parts of the skyline, that a search looks at. Much effort
/// begins as some does, so that it never finds less.
static constexpr int64_t kSomeVisits = 2 << 20, kMuchVisits = 24 << 20;
/// How many starting points a search has.
static constexpr int64_t kRounds = 16;

static std::vector<int64_t> getLive(ArrayRef<MemoryBlock> blocks) {
  int64_t steps = 1;
  for (const MemoryBlock &block : blocks)
    steps = std::max(steps, block.end + 1);
  std::vector<int64_t> bytes(steps + 1);
  for (const MemoryBlock &block : blocks) {
    bytes[block.begin] += block.bytes;
    bytes[block.end + 1] -= block.bytes;
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  bytes.pop_back();
  return bytes;
}

int64_t meshwright::getLargestLiveSet(ArrayRef<MemoryBlock> blocks) {
  std::vector<int64_t> bytes = getLive(blocks);
  return *llvm::max_element(bytes);
}

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// An order, and where it puts the blocks.
struct Plan {
  std::vector<size_t> order;
  std::vector<int64_t> offsets;
  /// The bytes of all together, and by how much they end beyond the target, in sum.
  int64_t arena = kNone, beyond = kNone;
};

class Placer {
public:
  Placer(MutableArrayRef<MemoryBlock> blocks, int64_t enough);
  int64_t run(SearchEffort effort);

private:
  /// Places the blocks by the plan's order, which differs from that of the plan whose
  /// offsets it has in where some blocks, `moved`, are; or by an order of its
  /// own (`moved` has all). Gives up, and is false, if that costs more than `most`.
  using Method = bool (Placer::*)(Plan &plan, int64_t most, ArrayRef<size_t> moved);
  bool placeInGaps(Plan &plan, int64_t most, ArrayRef<size_t> moved);
  bool placeOnSkyline(Plan &plan, int64_t most, ArrayRef<size_t> moved);

  void findNeighbours();
  Plan tryBy(Method method, llvm::function_ref<double(const MemoryBlock &)> rank);
  void search(Method method, Plan &plan, int64_t until);
  void searchFromSkylines(int64_t until);
  void keep(const Plan &plan);
  bool isEnough() const { return arena <= enough; }
  int64_t getCost(const Plan &plan) const { return bySum ? plan.beyond : plan.arena; }
  /// Counts a block of a plan.
  void add(Plan &plan, int64_t end) const {
    plan.arena = std::max(plan.arena, end);
    plan.beyond += std::max<int64_t>(0, end - target);
  }
  /// The same numbers everywhere, which no distribution of the library promises.
  size_t draw(size_t count) { return random() % count; }

  MutableArrayRef<MemoryBlock> blocks;
  /// What the search works towards, and what ends it: that may be more, and must not
  /// change its way, so that it finds no less where it goes on.
  int64_t target, enough, visits = 0, steps;
  /// Of each block those that are needed at the same time.
  std::vector<std::vector<size_t>> neighbours;
  std::mt19937 random;
  /// Whether a search goes by the sum: where layers are alike, that falls with each of
  /// them, the arena with the last one only.
  bool bySum = false;
  /// Of the best plan.
  int64_t arena = kNone;
};

} // namespace

Placer::Placer(MutableArrayRef<MemoryBlock> blocks, int64_t enough) : blocks(blocks) {
  std::vector<int64_t> live = getLive(blocks);
  steps = live.size();
  int64_t least = *llvm::max_element(live);
  target = least + least / 100;
  this->enough = std::max(enough, target);
  findNeighbours();
}

void Placer::findNeighbours() {
  neighbours.resize(blocks.size());
  std::vector<size_t> order(blocks.size()), alive;
  std::iota(order.begin(), order.end(), 0);
  llvm::stable_sort(order, [&](size_t a, size_t b) { return blocks[a].begin < blocks[b].begin; });
  for (size_t i : order) {
    llvm::erase_if(alive, [&](size_t other) { return blocks[other].end < blocks[i].begin; });
    for (size_t other : alive) {
      neighbours[i].push_back(other);
      neighbours[other].push_back(i);
    }
    alive.push_back(i);
  }
}

bool Placer::placeInGaps(Plan &plan, int64_t most, ArrayRef<size_t> moved) {
  // A block's offset depends on those before it that are needed at the same time: the
  // others stay where they are.
  std::vector<size_t> places(blocks.size());
  for (auto [place, block] : llvm::enumerate(plan.order))
    places[block] = place;
  std::vector<char> isOpen(blocks.size());
  for (size_t block : moved) {
    isOpen[block] = true;
    for (size_t other : neighbours[block])
      isOpen[other] = true;
  }
  visits += blocks.size() / 2;
  plan.arena = plan.beyond = 0;
  SmallVector<std::pair<int64_t, int64_t>> taken;
  for (size_t i : plan.order) {
    if (isOpen[i]) {
      taken.clear();
      for (size_t other : neighbours[i])
        if (places[other] < places[i])
          taken.push_back({plan.offsets[other], plan.offsets[other] + blocks[other].bytes});
      visits += neighbours[i].size() + 1;
      llvm::sort(taken);
      int64_t offset = 0;
      for (auto [begin, end] : taken) {
        if (begin - offset >= blocks[i].bytes)
          break;
        offset = std::max(offset, end);
      }
      if (plan.offsets[i] != offset)
        for (size_t other : neighbours[i])
          isOpen[other] = true;
      plan.offsets[i] = offset;
    }
    add(plan, plan.offsets[i] + blocks[i].bytes);
    if (getCost(plan) > most)
      return false;
  }
  return true;
}

bool Placer::placeOnSkyline(Plan &plan, int64_t most, ArrayRef<size_t>) {
  struct Part {
    int64_t begin, end, height;
  };
  std::list<Part> skyline{{0, steps - 1, 0}};
  auto mergeWithNext = [&](std::list<Part>::iterator part) {
    auto next = std::next(part);
    if (next == skyline.end() || next->height != part->height)
      return;
    part->end = next->end;
    skyline.erase(next);
  };
  auto merge = [&](std::list<Part>::iterator part) {
    mergeWithNext(part);
    if (part != skyline.begin())
      mergeWithNext(std::prev(part));
  };
  plan.arena = plan.beyond = 0;
  std::vector<size_t> left = plan.order;
  while (!left.empty()) {
    auto lowest = llvm::min_element(
        skyline, [](const Part &a, const Part &b) { return a.height < b.height; });
    auto next = llvm::find_if(left, [&](size_t i) {
      return blocks[i].begin >= lowest->begin && blocks[i].end <= lowest->end;
    });
    visits += skyline.size() + (next - left.begin()) + 1;
    if (next == left.end()) {
      int64_t before = lowest == skyline.begin() ? kNone : std::prev(lowest)->height;
      int64_t behind = std::next(lowest) == skyline.end() ? kNone : std::next(lowest)->height;
      lowest->height = std::min(before, behind);
      merge(lowest);
      continue;
    }
    const MemoryBlock &block = blocks[*next];
    plan.offsets[*next] = lowest->height;
    left.erase(next);
    int64_t top = lowest->height + block.bytes;
    add(plan, top);
    if (getCost(plan) > most)
      return false;
    if (lowest->begin < block.begin)
      skyline.insert(lowest, {lowest->begin, block.begin - 1, lowest->height});
    if (block.end < lowest->end)
      skyline.insert(std::next(lowest), {block.end + 1, lowest->end, lowest->height});
    *lowest = {block.begin, block.end, top};
    merge(lowest);
  }
  return true;
}

void Placer::keep(const Plan &plan) {
  if (plan.arena >= arena)
    return;
  arena = plan.arena;
  for (auto [block, offset] : llvm::zip_equal(blocks, plan.offsets))
    block.offset = offset;
}

Plan Placer::tryBy(Method method, llvm::function_ref<double(const MemoryBlock &)> rank) {
  Plan plan;
  plan.order.resize(blocks.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  llvm::stable_sort(plan.order,
                    [&](size_t a, size_t b) { return rank(blocks[a]) < rank(blocks[b]); });
  plan.offsets.resize(blocks.size());
  (this->*method)(plan, kNone, plan.order);
  keep(plan);
  return plan;
}

/// Goes on from a plan, for as long as nothing is good enough.
void Placer::search(Method method, Plan &plan, int64_t until) {
  while (visits < until && !isEnough()) {
    SmallVector<size_t> top;
    for (auto [i, block] : llvm::enumerate(blocks))
      if (plan.offsets[i] + block.bytes > (bySum ? target : plan.arena - 1))
        top.push_back(i);
    Plan next = plan;
    SmallVector<size_t> moved;
    for (size_t moves = 1 + draw(3); moves > 0; --moves) {
      size_t block = top[draw(top.size())];
      for (size_t hops = draw(3); hops > 0; --hops)
        if (!neighbours[block].empty())
          block = neighbours[block][draw(neighbours[block].size())];
      next.order.erase(llvm::find(next.order, block));
      next.order.insert(next.order.begin() + draw(blocks.size()), block);
      moved.push_back(block);
    }
    if (!(this->*method)(next, getCost(plan), moved))
      continue;
    keep(next);
    plan = std::move(next);
  }
}

static double getSteps(const MemoryBlock &block) { return double(block.end - block.begin + 1); }

/// What the first orders are by: as blocks come, which often is the least there is; the
/// largest first; those needed longest first; the most bytes times steps first.
static double (*const ranks[])(const MemoryBlock &) = {
    [](const MemoryBlock &block) { return double(block.begin); },
    [](const MemoryBlock &block) { return -double(block.bytes); },
    [](const MemoryBlock &block) { return -getSteps(block); },
    [](const MemoryBlock &block) { return -getSteps(block) * double(block.bytes); }};

void Placer::searchFromSkylines(int64_t until) {
  int64_t first = visits, half = (until - first) / (2 * kRounds);
  for (int64_t round = 0; round < kRounds && visits < until && !isEnough(); ++round) {
    bySum = round % 2;
    Plan plan = tryBy(&Placer::placeOnSkyline, ranks[(round / 2 + 1) % std::size(ranks)]);
    search(&Placer::placeOnSkyline, plan, first + half * (2 * round + 1));
    // From below, so that gaps give the same plan or a better one.
    llvm::stable_sort(plan.order,
                      [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; });
    placeInGaps(plan, kNone, plan.order);
    keep(plan);
    search(&Placer::placeInGaps, plan, first + half * (2 * round + 2));
  }
}

int64_t Placer::run(SearchEffort effort) {
  for (auto rank : ranks)
    if (!isEnough())
      tryBy(&Placer::placeInGaps, rank);
  searchFromSkylines(kSomeVisits);
  if (effort == SearchEffort::Much)
    searchFromSkylines(kMuchVisits);
  return arena;
}

int64_t meshwright::placeBlocks(MutableArrayRef<MemoryBlock> blocks, SearchEffort effort,
                                int64_t enough) {
  if (blocks.empty())
    return 0;
  return Placer(blocks, enough).run(effort);
}

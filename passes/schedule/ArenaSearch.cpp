//===- ArenaSearch.cpp - blocks of memory for stretches of time -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// First come plans by simple orders, often the least there is. In gaps: block by block,
// each in the lowest gap among those that are needed at the same time. On a skyline, the
// height of what is placed at each step: where it is lowest comes the first block that
// fits between what is higher on both sides; if none does, that part is raised to its
// lower neighbour.
//
// Where they are not good enough, a search walks through time under a limit, forwards
// or backwards. It puts each block at an end of a gap, so that those that come while it
// is there may still find room, and goes back where there is none. What follows depends
// on where the blocks of the moment are and on nothing before them: a moment's
// arrangement that led nowhere is not tried again, so that going back in one layer of a
// program does not multiply with going back in the next. The limit is within a
// hundredth of what no arena is below, or, where that takes too long, found by halving.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ArenaSearch.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/SmallVectorExtras.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/xxhash.h"

#include <iterator>
#include <limits>
#include <list>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

using namespace mlir;
using namespace meshwright;

/// About how many blocks the search looks at, at most.
static constexpr int64_t kSomeVisits = 2 << 20, kMuchVisits = 24 << 20;
/// How often it begins anew where an arena is more than a twentieth above what none is below.
static constexpr int64_t kMoreSearches = 4;
/// How often the stretch between a limit that failed and one that held is halved.
static constexpr int64_t kHalvings = 4;
/// Times the blocks that a walk looks at which never goes back: after so many without
/// getting further a walk jumps back, by up to so many blocks, twice as many each time;
/// and so many have the first walks, twice as many after each few. To go on elsewhere with
/// other choices often is better than to try all that is left here.
static constexpr int64_t kStallBudget = 2, kFirstJump = 64, kFirstWalk = 32, kWalksPerBudget = 4;

int64_t meshwright::getLargestLiveSet(ArrayRef<MemoryBlock> blocks) {
  int64_t steps = 1;
  for (const MemoryBlock &block : blocks)
    steps = std::max(steps, block.end + 1);
  std::vector<int64_t> bytes(steps + 1);
  for (const MemoryBlock &block : blocks) {
    bytes[block.begin] += block.bytes;
    bytes[block.end + 1] -= block.bytes;
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  return *llvm::max_element(bytes);
}

namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// A stretch of the arena, and the blocks on both sides of it, if there are any.
struct Gap {
  int64_t begin, end;
  const MemoryBlock *below, *above;
  int64_t getBytes() const { return end - begin; }
};

using BlockRank = llvm::function_ref<double(const MemoryBlock &)>;

/// What a walk goes by: the blocks in the order of time, or against it, and for each of
/// them those before and after it that are needed at the same time.
struct WalkPlan {
  bool isForward;
  std::vector<size_t> order;
  std::vector<SmallVector<size_t>> before, after;
  /// Blocks that a walk looks at if it never goes back.
  int64_t visits = 0;
};

/// Of the walks under one limit, the arrangements from which nothing followed. There are
/// hashes of them: two that are taken for one only make a walk miss something.
struct Tried {
  llvm::DenseSet<uint64_t> deadEnds;
  /// Whether nothing is left to be tried.
  bool isDone = false;
};

/// Which end of which gap a walk tries first: the lowest; or that of the gap that leaves
/// the least, beside the block that goes when this one goes; or one of these, drawn for
/// each block, as it is behind a jump.
enum class Choice { Lowest, Tightest, Either };

class ArenaSearch {
public:
  ArenaSearch(MutableArrayRef<MemoryBlock> blocks, int64_t enough);
  int64_t run(SearchEffort effort);

private:
  void findNeighbours();
  std::vector<size_t> sort(BlockRank rank) const;
  /// The gaps below a limit between blocks that are placed.
  SmallVector<Gap> getGaps(ArrayRef<size_t> placed, int64_t limit);
  void placeInGaps(ArrayRef<size_t> order);
  void placeOnSkyline(ArrayRef<size_t> order);

  WalkPlan makePlan(bool isForward) const;
  bool hasRoom(const WalkPlan &plan, size_t block, int64_t limit);
  SmallVector<int64_t> getOffsets(const WalkPlan &plan, size_t block, Choice choice,
                                  int64_t limit);
  bool walk(const WalkPlan &plan, Tried &tried, Choice choice, int64_t limit, int64_t mostVisits);
  bool walkEachWay(int64_t limit, int64_t mostVisits);
  void search(int64_t mostVisits);

  void keep();
  bool isEnough() const { return arena <= enough; }

  MutableArrayRef<MemoryBlock> blocks;
  /// What the search works towards, above what it begins anew, and what ends it: that
  /// may be more, and must not change its way, so that it finds no less where it goes on.
  int64_t target, acceptable, enough, visits = 0;
  /// What the sizes of all blocks are multiples of, and so their offsets.
  int64_t unit = 0;
  /// Of each block those that are needed at the same time.
  std::vector<std::vector<size_t>> neighbours;
  /// Forwards and backwards; none before the search.
  SmallVector<WalkPlan, 2> walkPlans;
  /// Where a plan puts the blocks; kNone for those that are not placed yet.
  std::vector<int64_t> offsets;
  std::mt19937 random;
  /// Of the best plan.
  int64_t arena = kNone;
};

} // namespace

ArenaSearch::ArenaSearch(MutableArrayRef<MemoryBlock> blocks, int64_t enough)
    : blocks(blocks), offsets(blocks.size()) {
  int64_t least = getLargestLiveSet(blocks);
  target = least + least / 100;
  acceptable = least + least / 20;
  this->enough = std::max(enough, target);
  for (const MemoryBlock &block : blocks)
    unit = std::gcd(unit, block.bytes);
  findNeighbours();
}

void ArenaSearch::findNeighbours() {
  neighbours.resize(blocks.size());
  std::vector<size_t> alive;
  for (size_t i : sort([](const MemoryBlock &block) { return double(block.begin); })) {
    llvm::erase_if(alive, [&](size_t other) { return blocks[other].end < blocks[i].begin; });
    for (size_t other : alive) {
      neighbours[i].push_back(other);
      neighbours[other].push_back(i);
    }
    alive.push_back(i);
  }
}

std::vector<size_t> ArenaSearch::sort(BlockRank rank) const {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  llvm::sort(order, [&](size_t a, size_t b) {
    return std::pair(rank(blocks[a]), a) < std::pair(rank(blocks[b]), b);
  });
  return order;
}

static double getSteps(const MemoryBlock &block) { return double(block.end - block.begin + 1); }
static double getMinusArea(const MemoryBlock &block) {
  return -getSteps(block) * double(block.bytes);
}

WalkPlan ArenaSearch::makePlan(bool isForward) const {
  WalkPlan plan;
  plan.isForward = isForward;
  plan.order.resize(blocks.size());
  std::iota(plan.order.begin(), plan.order.end(), 0);
  auto key = [&](size_t i) {
    const MemoryBlock &block = blocks[i];
    return std::tuple(isForward ? block.begin : -block.end, getMinusArea(block), i);
  };
  llvm::sort(plan.order, [&](size_t a, size_t b) { return key(a) < key(b); });
  std::vector<size_t> places(blocks.size());
  for (auto [place, block] : llvm::enumerate(plan.order))
    places[block] = place;
  plan.before.resize(blocks.size());
  plan.after.resize(blocks.size());
  for (auto [block, others] : llvm::enumerate(neighbours)) {
    for (size_t other : others)
      (places[other] < places[block] ? plan.before : plan.after)[block].push_back(other);
    // When it is placed, and when each of those before it is.
    int64_t count = plan.before[block].size() + 1;
    plan.visits += count * count;
  }
  return plan;
}

SmallVector<Gap> ArenaSearch::getGaps(ArrayRef<size_t> placed, int64_t limit) {
  visits += placed.size() + 1;
  SmallVector<size_t> byOffset(placed);
  llvm::sort(byOffset, [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  SmallVector<Gap> gaps;
  int64_t end = 0;
  const MemoryBlock *below = nullptr;
  for (size_t other : byOffset) {
    if (offsets[other] > end)
      gaps.push_back({end, offsets[other], below, &blocks[other]});
    if (int64_t top = offsets[other] + blocks[other].bytes; top > end) {
      end = top;
      below = &blocks[other];
    }
  }
  if (end < limit)
    gaps.push_back({end, limit, below, nullptr});
  return gaps;
}

/// Keeps the plan in `offsets` if it is better than those before.
void ArenaSearch::keep() {
  int64_t end = 0;
  for (auto [block, offset] : llvm::zip_equal(blocks, offsets))
    end = std::max(end, offset + block.bytes);
  if (end >= arena)
    return;
  arena = end;
  for (auto [block, offset] : llvm::zip_equal(blocks, offsets))
    block.offset = offset;
}

void ArenaSearch::placeInGaps(ArrayRef<size_t> order) {
  llvm::fill(offsets, kNone);
  SmallVector<size_t> placed;
  for (size_t i : order) {
    placed.clear();
    llvm::copy_if(neighbours[i], std::back_inserter(placed),
                  [&](size_t other) { return offsets[other] != kNone; });
    SmallVector<Gap> gaps = getGaps(placed, kNone);
    auto fits = [&](const Gap &gap) { return gap.getBytes() >= blocks[i].bytes; };
    offsets[i] = llvm::find_if(gaps, fits)->begin;
  }
  keep();
}

/// Gives up, and keeps nothing, where that takes as long as a search.
void ArenaSearch::placeOnSkyline(ArrayRef<size_t> order) {
  struct Part {
    int64_t begin, end, height;
  };
  int64_t last = 0;
  for (const MemoryBlock &block : blocks)
    last = std::max(last, block.end);
  std::list<Part> skyline{{0, last, 0}};
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
  std::vector<size_t> left(order);
  for (int64_t until = visits + kSomeVisits; !left.empty();) {
    if (visits >= until)
      return;
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
    offsets[*next] = lowest->height;
    left.erase(next);
    if (lowest->begin < block.begin)
      skyline.insert(lowest, {lowest->begin, block.begin - 1, lowest->height});
    if (block.end < lowest->end)
      skyline.insert(std::next(lowest), {block.end + 1, lowest->end, lowest->height});
    *lowest = {block.begin, block.end, lowest->height + block.bytes};
    merge(lowest);
  }
  keep();
}

/// Whether what is needed when a block comes, and is not placed yet, may find room
/// beside what is: if not, it finds none. A gap may be too small for any of it, or have
/// room for one only.
bool ArenaSearch::hasRoom(const WalkPlan &plan, size_t block, int64_t limit) {
  SmallVector<size_t> placed;
  SmallVector<int64_t> sizes{blocks[block].bytes};
  for (size_t other : plan.before[block])
    if (offsets[other] == kNone)
      sizes.push_back(blocks[other].bytes);
    else
      placed.push_back(other);
  int64_t smallest = *llvm::min_element(sizes), needed = llvm::sum_of(sizes), room = 0;
  bool fits = false;
  for (const Gap &gap : getGaps(placed, limit)) {
    int64_t bytes = gap.getBytes();
    fits |= bytes >= blocks[block].bytes;
    if (bytes >= 2 * smallest) {
      room += bytes;
      continue;
    }
    int64_t largest = 0;
    for (int64_t size : sizes)
      if (size <= bytes)
        largest = std::max(largest, size);
    room += largest;
  }
  return fits && needed <= room;
}

/// Where a walk may put a block, the first choice last.
SmallVector<int64_t> ArenaSearch::getOffsets(const WalkPlan &plan, size_t block, Choice choice,
                                        int64_t limit) {
  if (choice == Choice::Either)
    choice = random() % 2 ? Choice::Lowest : Choice::Tightest;
  auto getLast = [&](const MemoryBlock &any) { return plan.isForward ? any.end : any.begin; };
  SmallVector<std::tuple<int64_t, int64_t, int64_t>> ranked;
  for (const Gap &gap : getGaps(plan.before[block], limit)) {
    int64_t rest = gap.getBytes() - blocks[block].bytes;
    auto add = [&](int64_t offset, const MemoryBlock *beside) {
      int64_t apart = beside ? std::abs(getLast(*beside) - getLast(blocks[block])) : 0;
      if (choice == Choice::Lowest)
        ranked.push_back({offset, 0, offset});
      else
        ranked.push_back({rest, apart, offset});
    };
    if (rest >= 0)
      add(gap.begin, gap.below);
    if (rest > 0)
      add(gap.begin + rest, gap.above);
  }
  llvm::sort(ranked, std::greater<>());
  return llvm::map_to_vector(ranked, [](const auto &rank) { return std::get<2>(rank); });
}

/// Whether all blocks find places below the limit. Gives up after so many visits.
bool ArenaSearch::walk(const WalkPlan &plan, Tried &tried, Choice choice, int64_t limit,
                  int64_t mostVisits) {
  /// What is left to be tried for a block, and the arrangement it is for.
  struct Step {
    SmallVector<int64_t> offsets;
    uint64_t key;
  };
  std::vector<Step> steps;
  auto open = [&](size_t block) {
    std::vector<int64_t> key{int64_t(block)};
    for (size_t other : plan.before[block])
      key.push_back(offsets[other]);
    // Without a bit, so that it is no mark of the set's own.
    uint64_t hash = llvm::xxh3_64bits(ArrayRef(reinterpret_cast<const uint8_t *>(key.data()),
                                               key.size() * sizeof(int64_t))) >>
                    1;
    steps.push_back({{}, hash});
    if (!tried.deadEnds.contains(hash))
      steps.back().offsets = getOffsets(plan, block, choice, limit);
  };
  llvm::fill(offsets, kNone);
  open(plan.order.front());
  size_t furthest = 0;
  int64_t until = visits + mostVisits, jumpAt = 0, jump = 0;
  while (!steps.empty() && visits < until) {
    if (steps.size() > furthest) {
      furthest = steps.size();
      jumpAt = visits + kStallBudget * plan.visits;
      jump = kFirstJump;
    } else if (visits > jumpAt) {
      size_t to = furthest - std::min<size_t>(furthest, 1 + random() % jump);
      jumpAt = visits + kStallBudget * plan.visits;
      jump = std::min<int64_t>(2 * jump, blocks.size());
      choice = Choice::Either;
      if (to < steps.size()) {
        for (; steps.size() > to; steps.pop_back())
          offsets[plan.order[steps.size() - 1]] = kNone;
        open(plan.order[to]);
      }
    }
    size_t block = plan.order[steps.size() - 1];
    if (steps.back().offsets.empty()) {
      tried.deadEnds.insert(steps.back().key);
      offsets[block] = kNone;
      steps.pop_back();
      continue;
    }
    offsets[block] = steps.back().offsets.pop_back_val();
    if (!llvm::all_of(plan.after[block],
                      [&](size_t other) { return hasRoom(plan, other, limit); }))
      continue;
    if (steps.size() == blocks.size()) {
      keep();
      return true;
    }
    open(plan.order[steps.size()]);
  }
  tried.isDone = steps.empty();
  return false;
}

/// Whether any walk finds places below the limit.
bool ArenaSearch::walkEachWay(int64_t limit, int64_t mostVisits) {
  Tried tried[2];
  auto isDone = [](const Tried &any) { return any.isDone; };
  int64_t until = visits + mostVisits, times = kFirstWalk;
  for (int64_t count = 0; visits < until && !llvm::all_of(tried, isDone); ++count) {
    if (count > 0 && count % kWalksPerBudget == 0)
      times *= 2;
    const WalkPlan &plan = walkPlans[count % 2];
    if (plan.visits > until - visits)
      return false;
    Choice choice = count < 2 ? Choice::Lowest : count < 4 ? Choice::Tightest : Choice::Either;
    if (walk(plan, tried[count % 2], choice, limit,
             std::min(until - visits, times * plan.visits)))
      return true;
  }
  return false;
}

void ArenaSearch::search(int64_t mostVisits) {
  if (isEnough())
    return;
  if (walkPlans.empty())
    walkPlans = {makePlan(/*isForward=*/true), makePlan(/*isForward=*/false)};
  int64_t failed = llvm::alignDown(target, unit);
  if (walkEachWay(failed, mostVisits / 4))
    return;
  for (int64_t count = 0; count < kHalvings && !isEnough(); ++count) {
    int64_t limit = llvm::alignDown(failed + (arena - failed) / 2, unit);
    if (limit <= failed)
      return;
    if (!walkEachWay(limit, (mostVisits - mostVisits / 4) / kHalvings))
      failed = limit;
  }
}

/// What the first orders are by: as blocks come; the largest first; those needed longest
/// first; the most bytes times steps first.
static double (*const ranks[])(const MemoryBlock &) = {
    [](const MemoryBlock &block) { return double(block.begin); },
    [](const MemoryBlock &block) { return -double(block.bytes); },
    [](const MemoryBlock &block) { return -getSteps(block); }, getMinusArea};

int64_t ArenaSearch::run(SearchEffort effort) {
  for (auto place : {&ArenaSearch::placeInGaps, &ArenaSearch::placeOnSkyline})
    for (auto rank : ranks)
      if (!isEnough())
        (this->*place)(sort(rank));
  search(kSomeVisits);
  if (effort == SearchEffort::Some)
    return arena;
  search(kMuchVisits);
  for (int64_t count = 0; count < kMoreSearches && arena > acceptable; ++count)
    search(kMuchVisits);
  return arena;
}

int64_t meshwright::assignOffsets(MutableArrayRef<MemoryBlock> blocks, SearchEffort effort,
                                int64_t enough) {
  if (blocks.empty())
    return 0;
  return ArenaSearch(blocks, enough).run(effort);
}

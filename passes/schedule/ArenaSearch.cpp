//===- ArenaSearch.cpp - blocks of memory for stretches of time -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Assigns offsets in an arena to blocks of memory, each of which is needed during an
// interval of steps. The problem is NP-hard (dynamic storage allocation), so the search
// is a heuristic with a fixed budget. A *visit* is the work on one block in one pass.
//
// 1. `run` first tries simple orders of the blocks (`ranks`), with two methods each:
//    - `placeInGaps` gives each block the lowest gap between the blocks that are needed
//      at the same time and have an offset already.
//    - `placeOnSkyline` keeps the height of the placed blocks over time. At the lowest
//      segment of this skyline it puts the first block whose interval fits. If no block
//      fits, it raises the segment to its lower neighbour.
// 2. `search` then looks for an arena below a limit. The first limit is `target`, one
//    hundredth above the largest live set, below which no arena exists. If that fails,
//    it halves the range between the failed limit and the best arena, kHalvings times.
// 3. `walkEachWay` calls `walk` for one limit, forwards and backwards in time by turns,
//    with budgets that grow.
// 4. `walk` is a depth-first search. It takes the blocks in the order of a WalkPlan:
//    - `getOffsets` lists the candidate offsets of a block, both ends of each gap. At an
//      end of a gap a block leaves the most room for later blocks.
//    - `hasRoom` checks each later block that is needed at the same time. If one has no
//      room, the walk takes the next candidate; without candidates it backtracks.
//    - The rest of a walk depends only on the offsets of the blocks that are alive, so
//      an arrangement that failed is stored in `Tried::deadEnds` and not tried again.
//      Thus backtracking in one layer of a program does not multiply with that in the
//      next.
//    - A walk that makes no progress jumps back by a random distance (kStallBudget).
//
// Complexity, for n blocks with k neighbours each: simple orders take n k at most; a walk
// without backtracking takes n k^2 visits; all walks together take at most kSomeVisits,
// or kMuchVisits times 1 + kMoreSearches, and there are none if one would take more.
// Memory is n, and n k for walks. The random numbers have a fixed seed, so the result is
// the same on all machines.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ArenaSearch.h"

#include "meshwright/passes/schedule/PlacedBlocks.h"

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
#include <queue>
#include <random>
#include <tuple>
#include <vector>

using namespace mlir;
using namespace meshwright;

/// Budgets of a search, in visits.
static constexpr int64_t kSomeVisits = 2 << 20, kMuchVisits = 24 << 20;
/// Further searches while the arena is more than a twentieth above the largest live set.
static constexpr int64_t kMoreSearches = 4;
/// Halvings of the range between a limit that failed and one that held.
static constexpr int64_t kHalvings = 4;
/// Budgets of a walk, in units of one walk without backtracking (`WalkPlan::visits`):
///  - kStallBudget: a walk that gets no further for so long jumps back. The first jump
///    goes back by at most kFirstJump blocks; each further jump doubles this bound.
///  - kFirstWalk: the budget of the first walks. It doubles after each kWalksPerBudget
///    walks. Restarts with other choices pay more often than an exhaustive search.
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

/// A free range of the arena, and the blocks on both sides of it (null at an end).
struct Gap {
  int64_t begin, end;
  const MemoryBlock *below, *above;
  int64_t getBytes() const { return end - begin; }
};

using BlockRank = llvm::function_ref<double(const MemoryBlock &)>;

/// The order in which a walk takes the blocks: forwards or backwards in time. `before` and
/// `after` list, for each block, the blocks that are needed at the same time and come
/// before or after it in that order.
struct WalkPlan {
  bool isForward;
  std::vector<size_t> order;
  std::vector<SmallVector<size_t>> before, after;
  /// Visits of a walk without backtracking.
  int64_t visits = 0;
};

/// The results of the walks under one limit.
struct Tried {
  /// Hashes of arrangements without a solution. A collision can hide a solution, but
  /// never gives a wrong one.
  llvm::DenseSet<uint64_t> deadEnds;
  /// True if a walk has tried everything.
  bool isDone = false;
};

/// The candidate offset that a walk tries first:
///  - Lowest: the lowest offset;
///  - Tightest: in the gap that leaves the least room, next to the neighbour that is
///    freed at nearly the same step;
///  - Either: one of the two, at random for each block. A jump switches to it.
enum class Choice { Lowest, Tightest, Either };

/// Assigns offsets to blocks; see the top of this file. Invariants:
///  - `blocks[i].offset` is the best assignment so far, and `arena` its size;
///  - `offsets` is the assignment under construction;
///  - offsets are multiples of `unit`.
class ArenaSearch {
public:
  ArenaSearch(MutableArrayRef<MemoryBlock> blocks, int64_t enough);
  int64_t run(SearchEffort effort);

private:
  int64_t countVisits(bool isForward) const;
  void findNeighbours();
  std::vector<size_t> sort(BlockRank rank) const;
  /// The gaps below a limit between the `placed` blocks, from low to high.
  SmallVector<Gap> getGaps(ArrayRef<size_t> placed, int64_t limit);
  void sortByOffset(SmallVectorImpl<size_t> &placed) const;
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
  /// Arena sizes. The search works towards `target` and ends at `enough`, which may be
  /// larger. It starts anew above `acceptable`. `enough` must not influence the choices
  /// of the search: then a smaller `enough` never gives a larger arena.
  int64_t target, acceptable, enough;
  int64_t visits = 0;
  /// The greatest common divisor of all sizes.
  int64_t unit = 0;
  /// For each block, the blocks that are needed at the same time.
  std::vector<std::vector<size_t>> neighbours;
  /// Forwards and backwards; none before the search.
  SmallVector<WalkPlan, 2> walkPlans;
  /// Offsets under construction; kNone where a block has none yet.
  std::vector<int64_t> offsets;
  std::mt19937 random;
  /// The size of the best arena.
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
}

/// The visits of a walk without backtracking (`WalkPlan::visits`), without a plan.
int64_t ArenaSearch::countVisits(bool isForward) const {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const MemoryBlock &block : blocks)
    times.push_back(isForward ? std::pair(block.begin, block.end)
                              : std::pair(-block.end, -block.begin));
  llvm::sort(times);
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> ends;
  int64_t visits = 0;
  for (auto [begin, end] : times) {
    while (!ends.empty() && ends.top() < begin)
      ends.pop();
    ends.push(end);
    visits += int64_t(ends.size()) * int64_t(ends.size());
  }
  return visits;
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
  std::vector<size_t> positions(blocks.size());
  for (auto [position, block] : llvm::enumerate(plan.order))
    positions[block] = position;
  plan.before.resize(blocks.size());
  plan.after.resize(blocks.size());
  for (auto [block, others] : llvm::enumerate(neighbours)) {
    for (size_t other : others)
      (positions[other] < positions[block] ? plan.before : plan.after)[block].push_back(other);
    // `getGaps` visits the earlier neighbours once for the block itself, and once for
    // each of them when `hasRoom` checks the block.
    int64_t count = plan.before[block].size() + 1;
    plan.visits += count * count;
  }
  return plan;
}

void ArenaSearch::sortByOffset(SmallVectorImpl<size_t> &placed) const {
  auto byOffset = llvm::map_to_vector(
      placed, [&](size_t block) { return std::pair(offsets[block], block); });
  llvm::sort(byOffset);
  llvm::copy(llvm::make_second_range(byOffset), placed.begin());
}

SmallVector<Gap> ArenaSearch::getGaps(ArrayRef<size_t> placed, int64_t limit) {
  SmallVector<size_t> byOffset(placed);
  sortByOffset(byOffset);
  visits += placed.size() + 1;
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

/// Keeps the assignment in `offsets` if its arena is smaller than the best one.
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
  PlacedBlocks placed(blocks);
  for (size_t i : order) {
    offsets[i] = placed.place(blocks[i]);
    // No better than the best so far.
    if (offsets[i] + blocks[i].bytes >= arena)
      return;
  }
  keep();
}

/// Gives up, and keeps nothing, after kSomeVisits visits.
void ArenaSearch::placeOnSkyline(ArrayRef<size_t> order) {
  struct Segment {
    int64_t begin, end, height;
  };
  int64_t last = 0;
  for (const MemoryBlock &block : blocks)
    last = std::max(last, block.end);
  std::list<Segment> skyline{{0, last, 0}};
  auto mergeWithNext = [&](std::list<Segment>::iterator segment) {
    auto next = std::next(segment);
    if (next == skyline.end() || next->height != segment->height)
      return;
    segment->end = next->end;
    skyline.erase(next);
  };
  auto merge = [&](std::list<Segment>::iterator segment) {
    mergeWithNext(segment);
    if (segment != skyline.begin())
      mergeWithNext(std::prev(segment));
  };
  std::vector<size_t> left(order);
  for (int64_t until = visits + kSomeVisits; !left.empty();) {
    if (visits >= until)
      return;
    auto lowest = llvm::min_element(
        skyline, [](const Segment &a, const Segment &b) { return a.height < b.height; });
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

/// A necessary condition for a block and its earlier neighbours without an offset: their
/// sizes fit into the gaps between the earlier neighbours that have one. A gap that holds
/// fewer than two of the smallest counts with the largest single size that fits. Returns
/// false only if there is no room.
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

/// The candidate offsets of a block, the first choice last.
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

/// Returns true if all blocks get offsets below the limit. Gives up after `mostVisits`.
bool ArenaSearch::walk(const WalkPlan &plan, Tried &tried, Choice choice, int64_t limit,
                  int64_t mostVisits) {
  /// A block's candidates that are left, and the hash of the arrangement they are for.
  struct Step {
    SmallVector<int64_t> offsets;
    uint64_t key;
  };
  std::vector<Step> steps;
  auto open = [&](size_t block) {
    std::vector<int64_t> key{int64_t(block)};
    for (size_t other : plan.before[block])
      key.push_back(offsets[other]);
    // 63 bits: the set reserves the two largest keys.
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

/// Returns true if a walk succeeds below the limit.
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
  if (walkPlans.empty()) {
    // Not even one walk would end.
    if (std::min(countVisits(/*isForward=*/true), countVisits(/*isForward=*/false)) > mostVisits / 4)
      return;
    findNeighbours();
    walkPlans = {makePlan(/*isForward=*/true), makePlan(/*isForward=*/false)};
  }
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

/// The first orders: by first step; largest first; longest interval first; most bytes
/// times steps first.
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

//===- Placement.cpp - blocks of memory for stretches of time -------------===//
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
// is there still find room, and goes back where there is none. What follows depends on
// where the blocks of the moment are and on nothing before them: an arrangement that
// led nowhere is not tried again, which makes a program of many layers cost little more
// than one of a few. Halving finds the least limit.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Placement.h"

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

/// Blocks that the search looks at, at most.
static constexpr int64_t kSomeVisits = 2 << 20, kMuchVisits = 24 << 20;
/// How often the stretch between a limit that failed and one that held is halved.
static constexpr int64_t kHalvings = 4;
/// What the first walks may look at for each block, several times what one that never
/// goes back does; and after how many walks it is doubled. To begin anew with other
/// choices often is better than to go on.
static constexpr int64_t kFirstVisits = 64, kWalksToDouble = 4;

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

using BlockLess = llvm::function_ref<bool(const MemoryBlock &, const MemoryBlock &)>;

/// The blocks in an order, and for each of them those before and after it that are
/// needed at the same time.
struct Sequence {
  std::vector<size_t> order;
  std::vector<SmallVector<size_t>> before, after;
};

/// In which direction a walk goes, and the arrangements from which nothing followed.
/// There are hashes of them: two that are taken for one only make it miss something.
struct Journey {
  Sequence sequence;
  bool isForward;
  llvm::DenseSet<uint64_t> dead = {};
  /// Whether nothing is left to be tried.
  bool isDone = false;
};

/// Which end of which gap a walk tries first: the lowest; or that of the gap that leaves
/// the least, beside the block that goes when this one goes; or by one of them, drawn.
enum class Choice { Lowest, Tightest, Either };

class Placer {
public:
  Placer(MutableArrayRef<MemoryBlock> blocks, int64_t enough);
  int64_t run(SearchEffort effort);

private:
  void findNeighbours();
  Sequence sort(BlockLess isBefore) const;
  /// The gaps below a limit between blocks that are placed.
  SmallVector<Gap> getGaps(ArrayRef<size_t> placed, int64_t limit);
  void placeInGaps(const Sequence &sequence);
  void placeOnSkyline(const Sequence &sequence);

  bool hasRoom(const Sequence &sequence, size_t block, int64_t limit);
  SmallVector<int64_t> getOffsets(const Journey &journey, size_t block, Choice choice,
                                  int64_t limit);
  bool walk(Journey &journey, Choice choice, int64_t limit, int64_t mostVisits);
  bool walkEachWay(int64_t limit, int64_t mostVisits);
  void search(int64_t mostVisits);

  void keep();
  bool isEnough() const { return arena <= enough; }

  MutableArrayRef<MemoryBlock> blocks;
  /// What the search works towards, and what ends it: that may be more, and must not
  /// change its way, so that it finds no less where it goes on.
  int64_t target, enough, visits = 0;
  /// What the sizes of all blocks are multiples of, and so their offsets.
  int64_t unit = 0;
  /// Of each block those that are needed at the same time.
  std::vector<std::vector<size_t>> neighbours;
  /// Where a plan puts the blocks; kNone for those that are not placed yet.
  std::vector<int64_t> offsets;
  std::mt19937 random;
  /// Of the best plan.
  int64_t arena = kNone;
};

} // namespace

Placer::Placer(MutableArrayRef<MemoryBlock> blocks, int64_t enough)
    : blocks(blocks), offsets(blocks.size()) {
  int64_t least = getLargestLiveSet(blocks);
  target = least + least / 100;
  this->enough = std::max(enough, target);
  for (const MemoryBlock &block : blocks)
    unit = std::gcd(unit, block.bytes);
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

Sequence Placer::sort(BlockLess isBefore) const {
  Sequence sequence;
  sequence.order.resize(blocks.size());
  std::iota(sequence.order.begin(), sequence.order.end(), 0);
  llvm::stable_sort(sequence.order,
                    [&](size_t a, size_t b) { return isBefore(blocks[a], blocks[b]); });
  std::vector<size_t> places(blocks.size());
  for (auto [place, block] : llvm::enumerate(sequence.order))
    places[block] = place;
  sequence.before.resize(blocks.size());
  sequence.after.resize(blocks.size());
  for (auto [block, others] : llvm::enumerate(neighbours))
    for (size_t other : others)
      (places[other] < places[block] ? sequence.before : sequence.after)[block].push_back(other);
  return sequence;
}

SmallVector<Gap> Placer::getGaps(ArrayRef<size_t> placed, int64_t limit) {
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
void Placer::keep() {
  int64_t end = 0;
  for (auto [block, offset] : llvm::zip_equal(blocks, offsets))
    end = std::max(end, offset + block.bytes);
  if (end >= arena)
    return;
  arena = end;
  for (auto [block, offset] : llvm::zip_equal(blocks, offsets))
    block.offset = offset;
}

void Placer::placeInGaps(const Sequence &sequence) {
  for (size_t i : sequence.order) {
    SmallVector<Gap> gaps = getGaps(sequence.before[i], kNone);
    auto fits = [&](const Gap &gap) { return gap.getBytes() >= blocks[i].bytes; };
    offsets[i] = llvm::find_if(gaps, fits)->begin;
  }
  keep();
}

/// Gives up where there are very many blocks.
void Placer::placeOnSkyline(const Sequence &sequence) {
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
  std::vector<size_t> left = sequence.order;
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
/// beside what is. A gap may be too small for any of it, or have room for one only.
bool Placer::hasRoom(const Sequence &sequence, size_t block, int64_t limit) {
  SmallVector<size_t> placed;
  SmallVector<int64_t> sizes{blocks[block].bytes};
  for (size_t other : sequence.before[block])
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
SmallVector<int64_t> Placer::getOffsets(const Journey &journey, size_t block, Choice choice,
                                        int64_t limit) {
  if (choice == Choice::Either)
    choice = random() % 2 ? Choice::Lowest : Choice::Tightest;
  auto getLast = [&](const MemoryBlock &any) { return journey.isForward ? any.end : any.begin; };
  SmallVector<std::tuple<int64_t, int64_t, int64_t>> ranked;
  for (const Gap &gap : getGaps(journey.sequence.before[block], limit)) {
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
bool Placer::walk(Journey &journey, Choice choice, int64_t limit, int64_t mostVisits) {
  const Sequence &sequence = journey.sequence;
  /// What is left to be tried for a block, and the arrangement it is for.
  struct Step {
    SmallVector<int64_t> offsets;
    uint64_t key;
  };
  std::vector<Step> steps;
  auto open = [&](size_t block) {
    std::vector<int64_t> key{int64_t(block)};
    for (size_t other : sequence.before[block])
      key.push_back(offsets[other]);
    // Without a bit, so that it is no mark of the set's own.
    uint64_t hash = llvm::xxh3_64bits(ArrayRef(reinterpret_cast<const uint8_t *>(key.data()),
                                               key.size() * sizeof(int64_t))) >>
                    1;
    steps.push_back({{}, hash});
    if (!journey.dead.contains(hash))
      steps.back().offsets = getOffsets(journey, block, choice, limit);
  };
  llvm::fill(offsets, kNone);
  open(sequence.order.front());
  int64_t until = visits + mostVisits;
  while (!steps.empty() && visits < until) {
    size_t block = sequence.order[steps.size() - 1];
    if (steps.back().offsets.empty()) {
      journey.dead.insert(steps.back().key);
      offsets[block] = kNone;
      steps.pop_back();
      continue;
    }
    offsets[block] = steps.back().offsets.pop_back_val();
    if (!llvm::all_of(sequence.after[block],
                      [&](size_t other) { return hasRoom(sequence, other, limit); }))
      continue;
    if (steps.size() == blocks.size()) {
      keep();
      return true;
    }
    open(sequence.order[steps.size()]);
  }
  journey.isDone = steps.empty();
  return false;
}

static int64_t getSteps(const MemoryBlock &block) { return block.end - block.begin + 1; }
static int64_t getArea(const MemoryBlock &block) { return getSteps(block) * block.bytes; }

/// Whether any walk finds places below the limit.
bool Placer::walkEachWay(int64_t limit, int64_t mostVisits) {
  Sequence forwards = sort([](const MemoryBlock &a, const MemoryBlock &b) {
    return std::pair(a.begin, -getArea(a)) < std::pair(b.begin, -getArea(b));
  });
  Sequence backwards = sort([](const MemoryBlock &a, const MemoryBlock &b) {
    return std::pair(-a.end, -getArea(a)) < std::pair(-b.end, -getArea(b));
  });
  Journey journeys[] = {{std::move(forwards), /*isForward=*/true},
                        {std::move(backwards), /*isForward=*/false}};
  int64_t until = visits + mostVisits, visitsOfWalk = kFirstVisits * blocks.size();
  auto isDone = [](const Journey &journey) { return journey.isDone; };
  for (int64_t count = 0; visits < until && !llvm::all_of(journeys, isDone); ++count) {
    if (count > 0 && count % kWalksToDouble == 0)
      visitsOfWalk *= 2;
    Choice choice = count < 2 ? Choice::Lowest : count < 4 ? Choice::Tightest : Choice::Either;
    if (walk(journeys[count % 2], choice, limit, std::min(until - visits, visitsOfWalk)))
      return true;
  }
  return false;
}

void Placer::search(int64_t mostVisits) {
  int64_t failed = llvm::alignDown(target, unit);
  if (isEnough() || walkEachWay(failed, mostVisits / 2))
    return;
  for (int64_t count = 0; count < kHalvings && !isEnough(); ++count) {
    int64_t limit = llvm::alignDown(failed + (arena - failed) / 2, unit);
    if (!walkEachWay(limit, mostVisits / 2 / kHalvings))
      failed = limit;
  }
}

/// What the first orders are by: as blocks come; the largest first; those needed longest
/// first; the most bytes times steps first.
static int64_t (*const ranks[])(const MemoryBlock &) = {
    [](const MemoryBlock &block) { return block.begin; },
    [](const MemoryBlock &block) { return -block.bytes; },
    [](const MemoryBlock &block) { return -getSteps(block); },
    [](const MemoryBlock &block) { return -getArea(block); }};

int64_t Placer::run(SearchEffort effort) {
  for (auto place : {&Placer::placeInGaps, &Placer::placeOnSkyline})
    for (auto rank : ranks)
      if (!isEnough())
        (this->*place)(
            sort([&](const MemoryBlock &a, const MemoryBlock &b) { return rank(a) < rank(b); }));
  search(kSomeVisits);
  if (effort == SearchEffort::Much)
    search(kMuchVisits);
  return arena;
}

int64_t meshwright::placeBlocks(MutableArrayRef<MemoryBlock> blocks, SearchEffort effort,
                                int64_t enough) {
  if (blocks.empty())
    return 0;
  return Placer(blocks, enough).run(effort);
}

//===- Local.cpp - ranks are threads of one process -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks read each other's buffers. A collective starts and ends with a barrier
// of its group: nobody reads a buffer before its owner has written it, and
// nobody goes on to overwrite one that others still read.
//
//===----------------------------------------------------------------------===//

#include "Moves.h"
#include "Reduce.h"
#include "meshwright/runtime/include/Boxes.h"
#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/include/World.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>

using namespace meshwright::rt;

namespace {

/// What a rank brings to a collective.
struct Slot {
  const mw_rt_collective *what;
  int64_t op;
  const void *const *inputs;
  void *const *outputs;
};

/// Ranks that meet in collectives over the same axes.
struct Group {
  /// By linear coordinate over the axes.
  std::vector<int64_t> ranks;
  /// Coordinates in the order of their ranks: the order of reductions.
  std::vector<int64_t> byRank;
  std::vector<Slot> slots;

  std::mutex mutex;
  std::condition_variable condition;
  int64_t arrived = 0;
  int64_t generation = 0;
  std::vector<char> present;
};

/// A rank's part in a collective.
struct Member {
  Group *group;
  int64_t self;
  /// For each tensor; none for an all-reduce.
  std::vector<Arrivals> arrivals;
};

class LocalBackend : public Backend {
public:
  explicit LocalBackend(World &world) : world(world), members(world.getNumRanks()) {}

  void reset() override {
    for (auto &[key, group] : groups) {
      group->arrived = 0;
      std::fill(group->present.begin(), group->present.end(), 0);
    }
  }

  void wake() override {
    std::lock_guard<std::mutex> lock(groupsMutex);
    for (auto &[key, group] : groups) {
      std::lock_guard<std::mutex> groupLock(group->mutex);
      group->condition.notify_all();
    }
  }

  bool run(mw_rt_context &context, int64_t op, const mw_rt_collective &what,
           const void *const *inputs, void *const *outputs) override;

private:
  const Member &join(const mw_rt_context &context, const mw_rt_collective &what);
  bool wait(Group &group, const mw_rt_context &context, int64_t self, int64_t op);
  void allReduce(const Member &member, const mw_rt_collective &what, int64_t tensor);
  void collectReduced(const Member &member, const mw_rt_collective &what, int64_t tensor);
  void reduceScatter(const Member &member, const mw_rt_collective &what, int64_t tensor);
  void fetch(const Member &member, int64_t tensor);

  World &world;
  std::mutex groupsMutex;
  std::map<std::vector<int64_t>, std::unique_ptr<Group>> groups;
  /// For each rank, the group of each descriptor that it has met.
  std::vector<std::map<const mw_rt_collective *, Member>> members;
};

} // namespace

const Member &LocalBackend::join(const mw_rt_context &context, const mw_rt_collective &what) {
  auto &known = members[context.rank];
  if (auto found = known.find(&what); found != known.end())
    return found->second;
  int64_t self = 0;
  std::vector<int64_t> ranks = groupOf(what.group, context.rank, self);
  std::lock_guard<std::mutex> lock(groupsMutex);
  std::unique_ptr<Group> &group = groups[ranks];
  if (!group) {
    group = std::make_unique<Group>();
    group->byRank.resize(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i)
      group->byRank[i] = i;
    std::sort(group->byRank.begin(), group->byRank.end(),
              [&](int64_t a, int64_t b) { return ranks[a] < ranks[b]; });
    group->slots.resize(ranks.size());
    group->present.assign(ranks.size(), 0);
    group->ranks = std::move(ranks);
  }
  Member member{group.get(), self, {}};
  if (what.kind != MW_RT_ALL_REDUCE)
    for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
      member.arrivals.push_back(arrivalsOf(what, tensor, context.rank));
  return known.emplace(&what, std::move(member)).first->second;
}

/// Waits for the whole group; false after a failure.
bool LocalBackend::wait(Group &group, const mw_rt_context &context, int64_t self, int64_t op) {
  std::unique_lock<std::mutex> lock(group.mutex);
  if (world.hasFailed())
    return false;
  int64_t mine = group.generation;
  group.present[self] = 1;
  if (++group.arrived == int64_t(group.ranks.size())) {
    group.arrived = 0;
    std::fill(group.present.begin(), group.present.end(), 0);
    ++group.generation;
    group.condition.notify_all();
    return true;
  }
  auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(world.getTimeout());
  bool woken = group.condition.wait_until(
      lock, std::chrono::time_point_cast<std::chrono::steady_clock::duration>(deadline),
      [&] { return group.generation != mine || world.hasFailed(); });
  if (group.generation != mine)
    return true;
  if (woken)
    return false;
  std::string missing;
  int64_t others = 0;
  for (size_t i = 0; i < group.ranks.size(); ++i)
    if (!group.present[i]) {
      missing += (others ? ", " : "") + std::to_string(group.ranks[i]);
      ++others;
    }
  lock.unlock();
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", world.getTimeout());
  world.fail(context.rank, op,
             std::string("timed out after ") + seconds + " s waiting for rank" +
                 (others > 1 ? "s " : " ") + missing);
  return false;
}

bool LocalBackend::run(mw_rt_context &context, int64_t op, const mw_rt_collective &what,
                       const void *const *inputs, void *const *outputs) {
  const Member &member = join(context, what);
  Group &group = *member.group;
  group.slots[member.self] = {&what, op, inputs, outputs};
  if (!wait(group, context, member.self, op))
    return false;
  for (size_t i = 0; i < group.slots.size(); ++i)
    if (group.slots[i].what != &what || group.slots[i].op != op) {
      world.fail(context.rank, op,
                 "rank " + std::to_string(group.ranks[i]) +
                     " is at another collective: " + world.getOpName(group.slots[i].op));
      return false;
    }
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
    switch (what.kind) {
    case MW_RT_ALL_REDUCE:
      allReduce(member, what, tensor);
      break;
    case MW_RT_REDUCE_SCATTER:
      reduceScatter(member, what, tensor);
      break;
    case MW_RT_ALL_GATHER:
    case MW_RT_ALL_TO_ALL:
    case MW_RT_PERMUTE:
    case MW_RT_REDISTRIBUTE:
      fetch(member, tensor);
      break;
    default:
      world.fail(context.rank, op, "unknown collective " + std::to_string(what.kind));
      return false;
    }
  if (!wait(group, context, member.self, op))
    return false;
  if (what.kind != MW_RT_ALL_REDUCE)
    return true;
  for (int64_t tensor = 0; tensor < what.num_tensors; ++tensor)
    collectReduced(member, what, tensor);
  return wait(group, context, member.self, op);
}

/// First half: each member reduces its share into its own result.
void LocalBackend::allReduce(const Member &member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  auto [begin, end] = shareOf(countBefore(moved), member.self, group.ranks.size());
  DType type = DType(moved.dtype);
  std::vector<const void *> sources;
  for (int64_t from : group.byRank)
    sources.push_back(static_cast<const char *>(group.slots[from].inputs[tensor]) +
                      begin * sizeOf(type));
  reduce(type, what.reduction, sources,
         static_cast<char *>(group.slots[member.self].outputs[tensor]) + begin * sizeOf(type),
         end - begin);
}

/// Second half: it fetches the other shares.
void LocalBackend::collectReduced(const Member &member, const mw_rt_collective &what,
                                  int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  int64_t count = countBefore(moved), size = sizeOf(DType(moved.dtype));
  for (int64_t from = 0; from < int64_t(group.ranks.size()); ++from) {
    if (from == member.self)
      continue;
    auto [begin, end] = shareOf(count, from, group.ranks.size());
    std::memcpy(static_cast<char *>(group.slots[member.self].outputs[tensor]) + begin * size,
                static_cast<const char *>(group.slots[from].outputs[tensor]) + begin * size,
                (end - begin) * size);
  }
}

void LocalBackend::reduceScatter(const Member &member, const mw_rt_collective &what,
                                 int64_t tensor) {
  Group &group = *member.group;
  std::vector<ChunkSource> sources;
  for (int64_t from : group.byRank)
    sources.push_back({group.slots[from].inputs[tensor], /*isBox=*/false});
  reduceChunk(what, tensor, member.arrivals[tensor], sources,
              group.slots[member.self].outputs[tensor]);
}

void LocalBackend::fetch(const Member &member, int64_t tensor) {
  Group &group = *member.group;
  const Arrivals &arrivals = member.arrivals[tensor];
  void *result = group.slots[member.self].outputs[tensor];
  if (arrivals.clears)
    std::memset(result, 0, countOf(arrivals.outShape) * arrivals.elementSize);
  for (const Move &move : arrivals.moves)
    copyBox(group.slots[move.from].inputs[tensor], arrivals.inShape, move.source, result,
            arrivals.outShape, move.destination, move.extents, arrivals.elementSize);
}

std::unique_ptr<Backend> meshwright::rt::createLocalBackend(World &world) {
  return std::make_unique<LocalBackend>(world);
}

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

struct Member {
  Group *group;
  int64_t self;
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
  Member join(const mw_rt_context &context, const mw_rt_collective &what);
  bool wait(Group &group, const mw_rt_context &context, int64_t self, int64_t op);
  void allReduce(Member member, const mw_rt_collective &what, int64_t tensor);
  void collectReduced(Member member, const mw_rt_collective &what, int64_t tensor);
  void reduceScatter(Member member, const mw_rt_collective &what, int64_t tensor);
  void allGather(Member member, const mw_rt_collective &what, int64_t tensor);
  void allToAll(Member member, const mw_rt_collective &what, int64_t tensor);
  void permute(Member member, const mw_rt_collective &what, int64_t tensor);
  void redistribute(Member member, int64_t rank, const mw_rt_collective &what, int64_t tensor);

  World &world;
  std::mutex groupsMutex;
  std::map<std::vector<int64_t>, std::unique_ptr<Group>> groups;
  /// For each rank, the group of each descriptor that it has met.
  std::vector<std::map<const mw_rt_collective *, Member>> members;
};

std::vector<int64_t> shapeOf(const int64_t *sizes, int64_t rank) {
  return std::vector<int64_t>(sizes, sizes + rank);
}

int64_t product(const int64_t *sizes, int64_t begin, int64_t end) {
  int64_t count = 1;
  for (int64_t i = begin; i < end; ++i)
    count *= sizes[i];
  return count;
}

/// The part of `count` items that the group's member `self` of `size` works on.
std::pair<int64_t, int64_t> share(int64_t count, int64_t self, int64_t size) {
  return {count * self / size, count * (self + 1) / size};
}

} // namespace

Member LocalBackend::join(const mw_rt_context &context, const mw_rt_collective &what) {
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
  Member member{group.get(), self};
  known.emplace(&what, member);
  return member;
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
  Member member = join(context, what);
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
      allGather(member, what, tensor);
      break;
    case MW_RT_ALL_TO_ALL:
      allToAll(member, what, tensor);
      break;
    case MW_RT_PERMUTE:
      permute(member, what, tensor);
      break;
    case MW_RT_REDISTRIBUTE:
      redistribute(member, context.rank, what, tensor);
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
void LocalBackend::allReduce(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  auto [begin, end] =
      share(product(moved.in_shape, 0, moved.rank), member.self, group.ranks.size());
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
void LocalBackend::collectReduced(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  int64_t count = product(moved.in_shape, 0, moved.rank), size = sizeOf(DType(moved.dtype));
  for (int64_t from = 0; from < int64_t(group.ranks.size()); ++from) {
    if (from == member.self)
      continue;
    auto [begin, end] = share(count, from, group.ranks.size());
    std::memcpy(static_cast<char *>(group.slots[member.self].outputs[tensor]) + begin * size,
                static_cast<const char *>(group.slots[from].outputs[tensor]) + begin * size,
                (end - begin) * size);
  }
}

void LocalBackend::reduceScatter(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  int64_t outer = product(moved.in_shape, 0, moved.dim);
  int64_t inner = product(moved.in_shape, moved.dim + 1, moved.rank);
  int64_t rows = moved.in_shape[moved.dim], chunk = moved.out_shape[moved.dim];
  int64_t size = sizeOf(DType(moved.dtype));
  int64_t valid = std::clamp<int64_t>(rows - member.self * chunk, 0, chunk);
  char *result = static_cast<char *>(group.slots[member.self].outputs[tensor]);
  if (valid < chunk)
    std::memset(result, 0, outer * chunk * inner * size);
  std::vector<const void *> sources(group.ranks.size());
  for (int64_t o = 0; o < outer; ++o) {
    int64_t offset = (o * rows + member.self * chunk) * inner * size;
    for (size_t i = 0; i < sources.size(); ++i)
      sources[i] = static_cast<const char *>(group.slots[group.byRank[i]].inputs[tensor]) + offset;
    reduce(DType(moved.dtype), what.reduction, sources, result + o * chunk * inner * size,
           valid * inner);
  }
}

void LocalBackend::allGather(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  std::vector<int64_t> in = shapeOf(moved.in_shape, moved.rank);
  std::vector<int64_t> out = shapeOf(moved.out_shape, moved.rank);
  std::vector<int64_t> origin(moved.rank, 0), offset(moved.rank, 0), extents = in;
  for (int64_t from = 0; from < int64_t(group.ranks.size()); ++from) {
    offset[moved.dim] = from * in[moved.dim];
    extents[moved.dim] = std::clamp<int64_t>(out[moved.dim] - offset[moved.dim], 0, in[moved.dim]);
    copyBox(group.slots[from].inputs[tensor], in, origin, group.slots[member.self].outputs[tensor],
            out, offset, extents, sizeOf(DType(moved.dtype)));
  }
}

void LocalBackend::allToAll(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  std::vector<int64_t> in = shapeOf(moved.in_shape, moved.rank);
  std::vector<int64_t> out = shapeOf(moved.out_shape, moved.rank);
  std::vector<int64_t> source(moved.rank, 0), destination(moved.rank, 0), extents = in;
  int64_t from = moved.dim, to = moved.to_dim;
  extents[to] = out[to];
  source[to] = member.self * out[to];
  for (int64_t peer = 0; peer < int64_t(group.ranks.size()); ++peer) {
    destination[from] = peer * in[from];
    copyBox(group.slots[peer].inputs[tensor], in, source, group.slots[member.self].outputs[tensor],
            out, destination, extents, sizeOf(DType(moved.dtype)));
  }
}

void LocalBackend::permute(Member member, const mw_rt_collective &what, int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  int64_t from = reinterpret_cast<const int64_t *>(&what)[what.extra + member.self];
  int64_t bytes = product(moved.in_shape, 0, moved.rank) * sizeOf(DType(moved.dtype));
  void *result = group.slots[member.self].outputs[tensor];
  if (from < 0)
    std::memset(result, 0, bytes);
  else
    std::memcpy(result, group.slots[from].inputs[tensor], bytes);
}

/// Each dimension is cut both ways; every overlap of my chunk with an old one
/// is fetched from the rank that differs from me only in where that chunk lies.
void LocalBackend::redistribute(Member member, int64_t rank, const mw_rt_collective &what,
                                int64_t tensor) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Group &group = *member.group;
  std::vector<int64_t> in = shapeOf(moved.in_shape, moved.rank);
  std::vector<int64_t> out = shapeOf(moved.out_shape, moved.rank);
  const int64_t *cursor = reinterpret_cast<const int64_t *>(&what) + moved.layouts;
  auto readAxes = [&cursor] {
    mw_rt_axes axes;
    axes.count = *cursor++;
    for (int64_t i = 0; i < axes.count; ++i) {
      axes.axes[i].stride = *cursor++;
      axes.axes[i].size = *cursor++;
    }
    return axes;
  };
  /// An overlap along one dimension, and what it adds to the holder's rank.
  struct Piece {
    int64_t source, destination, extent, rankDelta;
  };
  std::vector<std::vector<Piece>> pieces(moved.rank);
  bool covered = true;
  for (int64_t d = 0; d < moved.rank; ++d) {
    mw_rt_axes before = readAxes(), after = readAxes();
    int64_t begin = coordinateOf(after, rank) * out[d], end = begin + out[d];
    int64_t own = coordinateOf(before, rank), chunks = sizeOfGroup(before), filled = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int64_t low = std::max(begin, chunk * in[d]), high = std::min(end, (chunk + 1) * in[d]);
      if (low >= high)
        continue;
      int64_t delta = 0, theirs = chunk, mine = own;
      for (int64_t i = before.count; i-- > 0;) {
        delta +=
            (theirs % before.axes[i].size - mine % before.axes[i].size) * before.axes[i].stride;
        theirs /= before.axes[i].size;
        mine /= before.axes[i].size;
      }
      pieces[d].push_back({low - chunk * in[d], low - begin, high - low, delta});
      filled += high - low;
    }
    covered &= filled == out[d];
  }
  void *result = group.slots[member.self].outputs[tensor];
  if (!covered)
    std::memset(result, 0, product(moved.out_shape, 0, moved.rank) * sizeOf(DType(moved.dtype)));
  std::vector<size_t> choice(moved.rank, 0);
  for (const std::vector<Piece> &list : pieces)
    if (list.empty())
      return;
  std::vector<int64_t> source(moved.rank), destination(moved.rank), extents(moved.rank);
  while (true) {
    int64_t holder = rank;
    for (int64_t d = 0; d < moved.rank; ++d) {
      const Piece &piece = pieces[d][choice[d]];
      source[d] = piece.source;
      destination[d] = piece.destination;
      extents[d] = piece.extent;
      holder += piece.rankDelta;
    }
    copyBox(group.slots[coordinateOf(what.group, holder)].inputs[tensor], in, source, result, out,
            destination, extents, sizeOf(DType(moved.dtype)));
    int64_t d = moved.rank - 1;
    for (; d >= 0; --d) {
      if (++choice[d] < pieces[d].size())
        break;
      choice[d] = 0;
    }
    if (d < 0)
      return;
  }
}

std::unique_ptr<Backend> meshwright::rt::createLocalBackend(World &world) {
  return std::make_unique<LocalBackend>(world);
}

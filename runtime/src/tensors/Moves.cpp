//===- Moves.cpp - the boxes that a collective moves ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Moves.h"

#include "meshwright/runtime/include/Axes.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>

namespace meshwright::rt {

Exchange exchangeOf(const mw_rt_collective &what) {
  switch (kindOf(what)) {
  case CollectiveKind::AllReduce:
    return Exchange::Combine;
  case CollectiveKind::ReduceScatter:
    return Exchange::CombineBoxes;
  case CollectiveKind::AllGather:
  case CollectiveKind::AllToAll:
  case CollectiveKind::Permute:
  case CollectiveKind::Redistribute:
    return Exchange::CopyBoxes;
  case CollectiveKind::Slice:
  case CollectiveKind::Partial:
    return Exchange::None;
  }
  throw std::runtime_error("unknown collective " + std::to_string(what.kind));
}

static std::vector<int64_t> shapeOf(const int64_t *sizes, int64_t rank) {
  return std::vector<int64_t>(sizes, sizes + rank);
}

int64_t countBefore(const mw_rt_moved_tensor &moved) {
  return countOf(shapeOf(moved.in_shape, moved.rank));
}

int64_t countAfter(const mw_rt_moved_tensor &moved) {
  return countOf(shapeOf(moved.out_shape, moved.rank));
}

/// Concatenates the parts of all members along a dimension. Elements beyond the end of the output
/// are padding and are not moved.
static void moveAllGather(const mw_rt_moved_tensor &moved, int64_t members, Arrivals &result) {
  int64_t dim = moved.dim, chunk = result.inShape[dim];
  for (int64_t from = 0; from < members; ++from) {
    Move move{from, std::vector<int64_t>(moved.rank, 0), std::vector<int64_t>(moved.rank, 0),
              result.inShape};
    move.destination[dim] = from * chunk;
    move.extents[dim] = std::clamp<int64_t>(result.outShape[dim] - from * chunk, 0, chunk);
    result.moves.push_back(std::move(move));
  }
}

/// The rank's chunk of each member's value. Elements of the chunk beyond the end of the value are
/// zeros.
static void moveReduceScatter(const mw_rt_moved_tensor &moved, int64_t members, int64_t self,
                              Arrivals &result) {
  int64_t dim = moved.dim, chunk = result.outShape[dim];
  int64_t valid = std::clamp<int64_t>(result.inShape[dim] - self * chunk, 0, chunk);
  result.clears = valid < chunk;
  for (int64_t from = 0; from < members; ++from) {
    Move move{from, std::vector<int64_t>(moved.rank, 0), std::vector<int64_t>(moved.rank, 0),
              result.outShape};
    move.source[dim] = self * chunk;
    move.extents[dim] = valid;
    result.moves.push_back(std::move(move));
  }
}

static void moveAllToAll(const mw_rt_moved_tensor &moved, int64_t members, int64_t self,
                         Arrivals &result) {
  for (int64_t from = 0; from < members; ++from) {
    Move move{from, std::vector<int64_t>(moved.rank, 0), std::vector<int64_t>(moved.rank, 0),
              result.inShape};
    move.extents[moved.to_dim] = result.outShape[moved.to_dim];
    move.source[moved.to_dim] = self * result.outShape[moved.to_dim];
    move.destination[moved.dim] = from * result.inShape[moved.dim];
    result.moves.push_back(std::move(move));
  }
}

/// Returns the distances from `rank` to the ranks of `group` for which `isReplica` is true, which
/// are the ranks that hold the same elements.
template <typename Predicate>
static std::vector<int64_t> replicasOf(const mw_rt_axes &group, int64_t rank, Predicate isReplica) {
  int64_t self = 0;
  std::vector<int64_t> replicas;
  for (int64_t other : groupOf(group, rank, self))
    if (isReplica(other))
      replicas.push_back(other - rank);
  return replicas;
}

/// Moves a value from one layout to another.
///
/// - Along each dimension, the rank's new chunk overlaps some of the old chunks. `pieces` has
///   these overlaps. A box is one overlap per dimension.
/// - `replicas` are the ranks that hold the same old chunks. They send equal parts of each box
///   that the rank does not hold itself.
/// - The last loop enumerates all combinations of pieces.
static void moveRedistribute(const mw_rt_collective &what, const mw_rt_moved_tensor &moved,
                             int64_t rank, Arrivals &result) {
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
  /// An overlap along one dimension, and its contribution to the holder's rank.
  struct Piece {
    int64_t source, destination, extent, rankDelta;
  };
  std::vector<std::vector<Piece>> pieces(moved.rank);
  std::vector<mw_rt_axes> held;
  for (int64_t d = 0; d < moved.rank; ++d) {
    mw_rt_axes before = readAxes(), after = readAxes();
    held.push_back(before);
    int64_t in = result.inShape[d], out = result.outShape[d];
    int64_t begin = coordinateOf(after, rank) * out, end = begin + out;
    int64_t own = coordinateOf(before, rank), chunks = sizeOfGroup(before), filled = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int64_t low = std::max(begin, chunk * in), high = std::min(end, (chunk + 1) * in);
      if (low >= high)
        continue;
      int64_t delta = 0, theirs = chunk, mine = own;
      for (int64_t i = before.count; i-- > 0;) {
        delta +=
            (theirs % before.axes[i].size - mine % before.axes[i].size) * before.axes[i].stride;
        theirs /= before.axes[i].size;
        mine /= before.axes[i].size;
      }
      pieces[d].push_back({low - chunk * in, low - begin, high - low, delta});
      filled += high - low;
    }
    result.clears |= filled != out;
  }
  for (const std::vector<Piece> &list : pieces)
    if (list.empty())
      return;
  // Replicas differ only in coordinates that no dimension uses. So the distances from a holder to
  // its replicas are those from this rank to its own replicas.
  std::vector<int64_t> replicas = replicasOf(what.group, rank, [&](int64_t other) {
    return std::all_of(held.begin(), held.end(), [&](const mw_rt_axes &axes) {
      return coordinateOf(axes, other) == coordinateOf(axes, rank);
    });
  });
  auto fetch = [&](const Move &box, int64_t holder) {
    if (holder == rank || replicas.size() == 1) {
      result.moves.push_back(box);
      result.moves.back().from = coordinateOf(what.group, holder);
      return;
    }
    size_t d = std::max_element(box.extents.begin(), box.extents.end()) - box.extents.begin();
    int64_t parts = replicas.size();
    for (int64_t part = 0; part < parts; ++part) {
      auto [begin, end] = shareOf(box.extents[d], part, parts);
      Move move = box;
      move.source[d] += begin;
      move.destination[d] += begin;
      move.extents[d] = end - begin;
      move.from = coordinateOf(what.group, holder + replicas[part]);
      result.moves.push_back(std::move(move));
    }
  };
  std::vector<size_t> choice(moved.rank, 0);
  while (true) {
    Move move;
    int64_t holder = rank;
    for (int64_t d = 0; d < moved.rank; ++d) {
      const Piece &piece = pieces[d][choice[d]];
      move.source.push_back(piece.source);
      move.destination.push_back(piece.destination);
      move.extents.push_back(piece.extent);
      holder += piece.rankDelta;
    }
    fetch(move, holder);
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

Arrivals arrivalsOf(const mw_rt_collective &what, int64_t tensor, int64_t rank) {
  const mw_rt_moved_tensor &moved = what.tensors[tensor];
  Arrivals result;
  result.inShape = shapeOf(moved.in_shape, moved.rank);
  result.outShape = shapeOf(moved.out_shape, moved.rank);
  result.elementSize = sizeOf(DType(moved.dtype));
  int64_t members = sizeOfGroup(what.group), self = coordinateOf(what.group, rank);
  switch (kindOf(what)) {
  case CollectiveKind::AllReduce:
  case CollectiveKind::Slice:
  case CollectiveKind::Partial:
    break;
  case CollectiveKind::AllGather:
    moveAllGather(moved, members, result);
    break;
  case CollectiveKind::ReduceScatter:
    moveReduceScatter(moved, members, self, result);
    break;
  case CollectiveKind::AllToAll:
    moveAllToAll(moved, members, self, result);
    break;
  case CollectiveKind::Permute: {
    int64_t from = sourcesOf(what)[self];
    result.clears = from < 0;
    std::vector<int64_t> origin(moved.rank, 0);
    if (from >= 0)
      result.moves.push_back({from, origin, origin, result.inShape});
    break;
  }
  case CollectiveKind::Redistribute:
    moveRedistribute(what, moved, rank, result);
    break;
  }
  auto isEmpty = [](const Move &move) { return countOf(move.extents) == 0; };
  result.moves.erase(std::remove_if(result.moves.begin(), result.moves.end(), isEmpty),
                     result.moves.end());
  return result;
}

const int64_t *sourcesOf(const mw_rt_collective &what) {
  return reinterpret_cast<const int64_t *>(&what) + what.extra;
}

bool joinsPermute(const mw_rt_collective &what, int64_t member) {
  const int64_t *from = sourcesOf(what);
  if (from[member] >= 0 && from[member] != member)
    return true;
  for (int64_t other = 0, size = sizeOfGroup(what.group); other < size; ++other)
    if (other != member && from[other] == member)
      return true;
  return false;
}

int64_t firstOfGroup(const mw_rt_collective &what, int64_t rank) {
  int64_t self;
  return communicates(what) ? groupOf(what.group, rank, self).front() : -1;
}

Traffic trafficOf(const mw_rt_collective &what, int64_t rank) {
  Traffic traffic;
  int64_t members = sizeOfGroup(what.group);
  if (members <= 1)
    return traffic;
  for (int64_t i = 0; i < what.num_tensors; ++i) {
    const mw_rt_moved_tensor &moved = what.tensors[i];
    int64_t bytes = std::max(countBefore(moved), countAfter(moved)) * sizeOf(DType(moved.dtype));
    int64_t part = (bytes * (members - 1) + members - 1) / members;
    switch (kindOf(what)) {
    case CollectiveKind::Slice:
    case CollectiveKind::Partial:
      break;
    case CollectiveKind::AllReduce:
      traffic.bytes += (2 * bytes * (members - 1) + members - 1) / members;
      traffic.steps = 2 * (members - 1);
      break;
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::AllGather:
    case CollectiveKind::AllToAll:
      traffic.bytes += part;
      traffic.steps = members - 1;
      break;
    case CollectiveKind::Permute: {
      const int64_t *from = sourcesOf(what);
      int64_t self = coordinateOf(what.group, rank);
      for (int64_t member = 0; member < members; ++member)
        if (member != self && from[member] == self)
          traffic.bytes += bytes;
      traffic.steps = joinsPermute(what, self);
      break;
    }
    case CollectiveKind::Redistribute: {
      Arrivals arrivals = arrivalsOf(what, i, rank);
      std::set<int64_t> peers;
      for (const Move &move : arrivals.moves) {
        if (move.from == coordinateOf(what.group, rank))
          continue;
        traffic.bytes += countOf(move.extents) * arrivals.elementSize;
        peers.insert(move.from);
      }
      traffic.steps = std::max<int64_t>(traffic.steps, peers.size());
      break;
    }
    }
  }
  return traffic;
}

} // namespace meshwright::rt

//===- Search.cpp - shortest paths over layouts ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Dijkstra's algorithm. A node is a layout: where each axis part lies, and to
// what size each factor is padded; an edge is a collective or a local step.
// Nothing here depends on the number of ranks, only on that of axes and factors.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/Search.h"

#include <queue>
#include <unordered_map>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

constexpr uint16_t kFree = 0xFFFF;
constexpr uint16_t kUnreduced = 0xFFFE;

/// Layouts that redistribute and permute may lead to are listed up front; where
/// there are more than this many, the two lead to the target only.
constexpr size_t kMaxPlacements = 2500;
/// A search that would visit more layouts than this keeps the best path so far.
constexpr size_t kMaxNodes = 50000;
/// A permute spells one pair for each rank of its group.
constexpr int64_t kMaxPermuteRanks = 4096;

/// For each axis part its factor (high byte) and its place among the factor's
/// axes (low byte), or one of the two constants.
using Placement = SmallVector<uint16_t, 8>;
/// For each factor the index of its padded size among the candidates.
using PadChoice = SmallVector<uint8_t, 8>;

struct Node {
  Placement placement;
  PadChoice pads;
  bool operator==(const Node &other) const {
    return placement == other.placement && pads == other.pads;
  }
};
struct NodeHash {
  size_t operator()(const Node &node) const {
    return llvm::hash_combine(
        llvm::hash_combine_range(node.placement.begin(), node.placement.end()),
        llvm::hash_combine_range(node.pads.begin(), node.pads.end()));
  }
};

/// Indices of axis parts, major to minor.
using Parts = SmallVector<uint8_t, 8>;

/// A placement seen from its factors.
struct Lists {
  SmallVector<Parts, 8> factors;
  SmallVector<int64_t, 8> shards;
  Parts unreduced, free;
  int64_t totalShards = 1;
};

using FactorAxes = SmallVector<SmallVector<Axis, 4>, 8>;

struct Edge {
  ReshardStepKind kind;
  Parts axes;
  int from = -1, to = -1;
  Cost cost;
};

struct Visit {
  Node node;
  Cost cost;
  int previous = -1;
  Edge edge;
  bool done = false;
};

class Search {
public:
  Search(const ReshardProblem &problem, const CostModel &model, const ReshardOptions &options)
      : problem(problem), model(model), options(options) {}

  FailureOr<ReshardPlan> run();

private:
  // Layouts.
  Node encode(const ReshardState &state);
  ReshardState decode(const Node &node) const;
  Lists getLists(const Placement &placement) const;
  int64_t getPadded(const Node &node, int factor) const {
    return padded[factor][node.pads[factor]];
  }
  bool isNeutral(const Node &node, const Lists &lists, int factor) const {
    return lists.factors[factor].empty() && getPadded(node, factor) == problem.factors[factor].size;
  }
  bool mayTouch(const Node &node, const Lists &lists, int factor) const;
  bool isConsistent(const Node &node, const Lists &lists) const;
  int64_t getLocalBytes(const Node &node, const Lists &lists) const;
  bool isOutermost(const Node &node, const Lists &lists, int factor) const;
  AxisList getAxes(ArrayRef<uint8_t> parts) const;
  int64_t getProduct(ArrayRef<uint8_t> parts) const;
  void listPlacements();

  // Edges out of the node being expanded.
  void expand(int index);
  void relax(Node next, const Lists &nextLists, Edge edge);
  void changePads();
  void reduce();
  void gather();
  void exchange();
  void slice();
  void makePartial();
  void permute(const Placement &placement, const Lists &lists);
  void redistribute(const Placement &placement, const Lists &lists, const FactorAxes &axes);
  FactorAxes getFactorAxes(const Lists &lists) const;
  /// Whether a path that goes on with this edge cannot be the best.
  bool isTooDear(const Cost &edge) const {
    return targetIndex >= 0 && !(cost + edge < visits[targetIndex].cost);
  }
  /// Calls `callback` with each order of each nonempty subset of `parts` (one
  /// order, if `subsetsOnly`).
  template <typename Callback>
  void forEachArrangement(ArrayRef<uint8_t> parts, bool subsetsOnly, Callback callback);
  Node append(const Node &node, const Lists &lists, ArrayRef<uint8_t> parts, int factor) const;

  ReshardPlan buildPlan(int last);

  const ReshardProblem &problem;
  const CostModel &model;
  const ReshardOptions &options;

  /// Candidate padded sizes of each factor: unpadded, the source's, the target's.
  SmallVector<SmallVector<int64_t, 3>, 8> padded;
  int64_t wholeDims = 1; // counted twice by two cuts of a dimension
  bool hasUnreduced = false;

  std::vector<Placement> placements;
  std::vector<Lists> placementLists;
  /// Of each placement the axes of each factor.
  std::vector<FactorAxes> placementAxes;
  bool allPlacements = true;

  std::vector<Visit> visits;
  std::unordered_map<Node, int, NodeHash> known;
  using Entry = std::pair<decltype(Cost().key()), int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  Node targetNode;
  int targetIndex = -1;

  // The node being expanded. Copies: relaxing grows `visits`.
  int current = -1;
  Node node;
  Lists lists;
  FactorAxes factorAxes;
  Cost cost;
  int64_t localBytes = 0;
};

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

Node Search::encode(const ReshardState &state) {
  Node result;
  result.placement.assign(problem.axes.size(), kFree);
  for (auto [f, axes] : llvm::enumerate(state.axes)) {
    uint16_t place = 0;
    for (const Axis &axis : axes)
      for (auto [i, part] : llvm::enumerate(problem.axes))
        if (axis.overlaps(part))
          result.placement[i] = uint16_t(f << 8 | place++);
  }
  for (const Axis &axis : state.unreduced)
    for (auto [i, part] : llvm::enumerate(problem.axes))
      if (axis.overlaps(part))
        result.placement[i] = kUnreduced;
  for (auto [f, size] : llvm::enumerate(state.padded)) {
    int64_t wanted = size;
    result.pads.push_back(llvm::find(padded[f], wanted) - padded[f].begin());
  }
  return result;
}

Lists Search::getLists(const Placement &placement) const {
  Lists result;
  result.factors.resize(problem.factors.size());
  result.shards.assign(problem.factors.size(), 1);
  for (auto [i, place] : llvm::enumerate(placement)) {
    if (place == kFree) {
      result.free.push_back(i);
    } else if (place == kUnreduced) {
      result.unreduced.push_back(i);
    } else {
      Parts &parts = result.factors[place >> 8];
      unsigned index = place & 0xFF;
      if (parts.size() <= index)
        parts.resize(index + 1);
      parts[index] = i;
      result.shards[place >> 8] *= problem.axes[i].size;
      result.totalShards *= problem.axes[i].size;
    }
  }
  return result;
}

AxisList Search::getAxes(ArrayRef<uint8_t> parts) const {
  AxisList axes;
  for (uint8_t part : parts)
    axes.push_back(problem.axes[part]);
  canonicalizeAxes(axes, model.getMesh());
  return axes;
}

int64_t Search::getProduct(ArrayRef<uint8_t> parts) const {
  int64_t product = 1;
  for (uint8_t part : parts)
    product *= problem.axes[part].size;
  return product;
}

ReshardState Search::decode(const Node &node) const {
  Lists lists = getLists(node.placement);
  ReshardState state;
  for (auto [f, parts] : llvm::enumerate(lists.factors)) {
    state.axes.push_back(getAxes(parts));
    state.padded.push_back(getPadded(node, f));
  }
  state.unreduced = getAxes(lists.unreduced);
  return state;
}

/// Of a dimension with two cuts only one is in use at a time.
bool Search::mayTouch(const Node &node, const Lists &lists, int factor) const {
  const ReshardFactor &touched = problem.factors[factor];
  for (auto [f, other] : llvm::enumerate(problem.factors))
    if (other.dim == touched.dim && other.cut != touched.cut && !isNeutral(node, lists, f))
      return false;
  return true;
}

bool Search::isConsistent(const Node &node, const Lists &lists) const {
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    if (getPadded(node, f) % lists.shards[f] != 0)
      return false;
    if (wholeDims != 1 && !isNeutral(node, lists, f) && !mayTouch(node, lists, f))
      return false;
  }
  return true;
}

int64_t Search::getLocalBytes(const Node &node, const Lists &lists) const {
  __int128 bytes = problem.elementBytes;
  for (int f = 0, e = problem.factors.size(); f < e; ++f)
    bytes *= getPadded(node, f) / lists.shards[f];
  bytes /= wholeDims;
  constexpr __int128 limit = std::numeric_limits<int64_t>::max() / 4;
  return bytes > limit ? int64_t(limit) : int64_t(bytes);
}

bool Search::isOutermost(const Node &node, const Lists &lists, int factor) const {
  const ReshardFactor &inner = problem.factors[factor];
  for (int f = 0; f < factor; ++f) {
    const ReshardFactor &outer = problem.factors[f];
    if (outer.dim == inner.dim && outer.cut != inner.cut)
      continue;
    if (getPadded(node, f) / lists.shards[f] == 1)
      continue;
    // The cut that is not in use is whole and says nothing.
    if (isNeutral(node, lists, f) &&
        !llvm::all_of(llvm::seq<int>(0, problem.factors.size()), [&](int g) {
          const ReshardFactor &other = problem.factors[g];
          return other.dim != outer.dim || other.cut == outer.cut || isNeutral(node, lists, g);
        }))
      continue;
    return false;
  }
  return true;
}

void Search::listPlacements() {
  // Axis by axis: free, unreduced, or at any place among a factor's axes.
  std::vector<Lists> partial(1);
  partial[0].factors.resize(problem.factors.size());
  for (uint8_t axis = 0; axis < problem.axes.size() && allPlacements; ++axis) {
    std::vector<Lists> next;
    for (const Lists &base : partial) {
      next.push_back(base);
      if (hasUnreduced) {
        next.push_back(base);
        next.back().unreduced.push_back(axis);
      }
      for (int f = 0, e = problem.factors.size(); f < e; ++f) {
        int64_t product = getProduct(base.factors[f]) * problem.axes[axis].size;
        if (llvm::none_of(padded[f], [&](int64_t size) { return size % product == 0; }))
          continue;
        for (size_t place = 0; place <= base.factors[f].size(); ++place) {
          next.push_back(base);
          Parts &parts = next.back().factors[f];
          parts.insert(parts.begin() + place, axis);
        }
      }
      if (next.size() > kMaxPlacements) {
        allPlacements = false;
        break;
      }
    }
    partial = std::move(next);
  }
  if (!allPlacements) {
    placements.push_back(targetNode.placement);
  } else {
    for (const Lists &entry : partial) {
      Placement placement(problem.axes.size(), kFree);
      for (auto [f, parts] : llvm::enumerate(entry.factors))
        for (auto [place, part] : llvm::enumerate(parts))
          placement[part] = uint16_t(f << 8 | place);
      for (uint8_t part : entry.unreduced)
        placement[part] = kUnreduced;
      placements.push_back(std::move(placement));
    }
  }
  for (const Placement &placement : placements) {
    placementLists.push_back(getLists(placement));
    placementAxes.push_back(getFactorAxes(placementLists.back()));
  }
}

//===----------------------------------------------------------------------===//
// Edges
//===----------------------------------------------------------------------===//

void Search::relax(Node next, const Lists &nextLists, Edge edge) {
  if (isTooDear(edge.cost))
    return;
  Cost total = cost + edge.cost;
  bool isTarget = next == targetNode;
  if (options.maxIntermediateBytes && !isTarget &&
      getLocalBytes(next, nextLists) > options.maxIntermediateBytes)
    return;
  auto [it, isNew] = known.try_emplace(next, int(visits.size()));
  if (isNew) {
    if (visits.size() >= kMaxNodes && !isTarget) {
      known.erase(it);
      return;
    }
    visits.emplace_back();
    visits.back().node = std::move(next);
    if (isTarget)
      targetIndex = it->second;
  }
  Visit &visit = visits[it->second];
  if (!isNew && (visit.done || !(total < visit.cost)))
    return;
  visit.cost = total;
  visit.previous = current;
  visit.edge = std::move(edge);
  queue.push({total.key(), it->second});
}

Node Search::append(const Node &node, const Lists &lists, ArrayRef<uint8_t> parts,
                    int factor) const {
  Node next = node;
  uint16_t place = lists.factors[factor].size();
  for (uint8_t part : parts)
    next.placement[part] = uint16_t(factor << 8 | place++);
  return next;
}

template <typename Callback>
void Search::forEachArrangement(ArrayRef<uint8_t> parts, bool subsetsOnly, Callback callback) {
  for (unsigned mask = 1; mask < (1u << parts.size()); ++mask) {
    Parts subset;
    for (unsigned i = 0; i < parts.size(); ++i)
      if (mask >> i & 1)
        subset.push_back(parts[i]);
    do {
      callback(subset);
    } while (!subsetsOnly && std::next_permutation(subset.begin(), subset.end()));
  }
}

void Search::changePads() {
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    if (padded[f].size() == 1 || !lists.factors[f].empty() || !mayTouch(node, lists, f))
      continue;
    for (auto [choice, size] : llvm::enumerate(padded[f])) {
      if (choice == node.pads[f])
        continue;
      Node next = node;
      next.pads[f] = choice;
      Edge edge;
      edge.kind = size > getPadded(node, f) ? ReshardStepKind::Pad : ReshardStepKind::Strip;
      edge.to = f;
      edge.cost.localSteps = 1;
      edge.cost.time = model.getMemoryTime(localBytes + getLocalBytes(next, lists));
      relax(std::move(next), lists, std::move(edge));
    }
  }
}

void Search::reduce() {
  forEachArrangement(lists.unreduced, /*subsetsOnly=*/true, [&](ArrayRef<uint8_t> subset) {
    Node next = node;
    for (uint8_t part : subset)
      next.placement[part] = kFree;
    AxisList axes = getAxes(subset);
    Edge edge;
    edge.kind = ReshardStepKind::AllReduce;
    edge.axes.assign(subset.begin(), subset.end());
    edge.cost = model.getCost(CollectiveKind::AllReduce, axes, localBytes);
    relax(next, getLists(next.placement), edge);
  });
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    if (lists.unreduced.empty() || !mayTouch(node, lists, f))
      continue;
    int packed = isOutermost(node, lists, f) ? 0 : 1;
    forEachArrangement(lists.unreduced, /*subsetsOnly=*/false, [&](ArrayRef<uint8_t> parts) {
      if (getPadded(node, f) % (lists.shards[f] * getProduct(parts)) != 0)
        return;
      Node next = append(node, lists, parts, f);
      Edge edge;
      edge.kind = ReshardStepKind::ReduceScatter;
      edge.axes.assign(parts.begin(), parts.end());
      edge.to = f;
      edge.cost = model.getCost(CollectiveKind::ReduceScatter, getAxes(parts), localBytes, packed);
      relax(next, getLists(next.placement), edge);
    });
  }
}

void Search::gather() {
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    ArrayRef<uint8_t> parts = lists.factors[f];
    int packed = isOutermost(node, lists, f) ? 0 : 1;
    for (size_t count = 1; count <= parts.size(); ++count) {
      ArrayRef<uint8_t> suffix = parts.take_back(count);
      Node next = node;
      for (uint8_t part : suffix)
        next.placement[part] = kFree;
      Lists nextLists = getLists(next.placement);
      Edge edge;
      edge.kind = ReshardStepKind::AllGather;
      edge.axes.assign(suffix.begin(), suffix.end());
      edge.from = f;
      edge.cost = model.getCost(CollectiveKind::AllGather, getAxes(suffix),
                                getLocalBytes(next, nextLists), packed);
      relax(std::move(next), nextLists, std::move(edge));
    }
  }
}

void Search::exchange() {
  int count = problem.factors.size();
  for (int f = 0; f < count; ++f) {
    ArrayRef<uint8_t> parts = lists.factors[f];
    for (size_t length = 1; length <= parts.size(); ++length) {
      ArrayRef<uint8_t> suffix = parts.take_back(length);
      int64_t ranks = getProduct(suffix);
      Node without = node;
      for (uint8_t part : suffix)
        without.placement[part] = kFree;
      Lists withoutLists = getLists(without.placement);
      for (int g = 0; g < count; ++g) {
        if (g == f || getPadded(node, g) % (lists.shards[g] * ranks) != 0 ||
            !mayTouch(node, lists, g))
          continue;
        // In another order the move is a redistribute, which costs the same.
        Node next = append(without, withoutLists, suffix, g);
        Lists nextLists = getLists(next.placement);
        if (wholeDims != 1 && !isConsistent(next, nextLists))
          continue;
        Edge edge;
        edge.kind = ReshardStepKind::AllToAll;
        edge.axes.assign(suffix.begin(), suffix.end());
        edge.from = f;
        edge.to = g;
        int packed =
            (isOutermost(node, lists, g) ? 0 : 1) + (isOutermost(next, nextLists, f) ? 0 : 1);
        edge.cost = model.getCost(CollectiveKind::AllToAll, getAxes(suffix), localBytes, packed);
        relax(std::move(next), nextLists, std::move(edge));
      }
    }
  }
}

void Search::slice() {
  for (uint8_t part : lists.free)
    for (int f = 0, e = problem.factors.size(); f < e; ++f) {
      if (getPadded(node, f) % (lists.shards[f] * problem.axes[part].size) != 0 ||
          !mayTouch(node, lists, f))
        continue;
      Node next = append(node, lists, part, f);
      Edge edge;
      edge.kind = ReshardStepKind::Slice;
      edge.axes.push_back(part);
      edge.to = f;
      edge.cost = model.getCost(CollectiveKind::Slice, problem.axes[part], localBytes);
      relax(next, getLists(next.placement), edge);
    }
}

void Search::makePartial() {
  // Only a target that is unreduced itself has use for it.
  if (problem.target.unreduced.empty() || problem.reduction != ReductionKind::Sum)
    return;
  for (uint8_t part : lists.free) {
    Node next = node;
    next.placement[part] = kUnreduced;
    Edge edge;
    edge.kind = ReshardStepKind::Partial;
    edge.axes.push_back(part);
    edge.cost = model.getCost(CollectiveKind::Partial, problem.axes[part], localBytes);
    relax(next, getLists(next.placement), edge);
  }
}

/// Pairs up the digits of two lists of the same chunks; false where sizes do
/// not nest. Appends to `moved` the axes whose digits change place.
static bool matchDigits(ArrayRef<Axis> from, ArrayRef<Axis> to, AxisList &moved) {
  AxisList a(llvm::reverse(from)), b(llvm::reverse(to));
  while (!a.empty() && !b.empty()) {
    Axis x = a.pop_back_val(), y = b.pop_back_val();
    int64_t size = std::min(x.size, y.size);
    if (x.size % size != 0 || y.size % size != 0)
      return false;
    if (x.size > size)
      a.push_back({x.axis, x.pre * size, x.size / size});
    if (y.size > size)
      b.push_back({y.axis, y.pre * size, y.size / size});
    Axis xDigit{x.axis, x.pre, size}, yDigit{y.axis, y.pre, size};
    if (xDigit != yDigit)
      for (const Axis &axis : {xDigit, yDigit})
        if (!contains(moved, axis))
          moved.push_back(axis);
  }
  return a.empty() && b.empty();
}

void Search::permute(const Placement &placement, const Lists &other) {
  if (other.totalShards != lists.totalShards || other.shards != lists.shards ||
      placement == node.placement)
    return;
  AxisList moved;
  auto match = [&](ArrayRef<uint8_t> a, ArrayRef<uint8_t> b) {
    AxisList from, to;
    for (uint8_t part : a)
      from.push_back(problem.axes[part]);
    for (uint8_t part : b)
      to.push_back(problem.axes[part]);
    return matchDigits(from, to, moved);
  };
  for (auto [a, b] : llvm::zip_equal(lists.factors, other.factors))
    if (a != b && !match(a, b))
      return;
  // Which unreduced axis takes the part of which does not matter: those that
  // stay are left alone.
  Parts gone, come;
  for (uint8_t part : lists.unreduced)
    if (!llvm::is_contained(other.unreduced, part))
      gone.push_back(part);
  for (uint8_t part : other.unreduced)
    if (!llvm::is_contained(lists.unreduced, part))
      come.push_back(part);
  if (!match(gone, come))
    return;
  // The group is over whole parts.
  Parts group;
  int64_t ranks = 1;
  for (auto [i, part] : llvm::enumerate(problem.axes))
    if (anyOverlap(part, moved)) {
      group.push_back(i);
      ranks *= part.size;
    }
  if (group.empty() || ranks > kMaxPermuteRanks)
    return;
  Node next{placement, node.pads};
  Edge edge;
  edge.kind = ReshardStepKind::Permute;
  edge.axes = group;
  edge.cost = model.getCost(CollectiveKind::Permute, getAxes(group), localBytes);
  relax(std::move(next), other, std::move(edge));
}

FactorAxes Search::getFactorAxes(const Lists &lists) const {
  FactorAxes result;
  for (const Parts &parts : lists.factors) {
    result.emplace_back();
    for (uint8_t part : parts)
      result.back().push_back(problem.axes[part]);
  }
  return result;
}

void Search::redistribute(const Placement &placement, const Lists &other,
                          const FactorAxes &otherAxes) {
  if (!other.unreduced.empty() || placement == node.placement)
    return;
  SmallVector<RedistributeFactor, 8> factors;
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    if (getPadded(node, f) % other.shards[f] != 0)
      return;
    factors.push_back({getPadded(node, f), factorAxes[f], otherAxes[f]});
  }
  int64_t scale = 1;
  if (wholeDims != 1) {
    Node next{placement, node.pads};
    if (!isConsistent(next, other))
      return;
    // Both cuts of a dimension are in use: rows of one cut are not boxes of the
    // other.
    for (int f = 0, e = problem.factors.size(); f < e; ++f)
      for (int g = 0; g < e; ++g)
        if (problem.factors[f].dim == problem.factors[g].dim &&
            problem.factors[f].cut < problem.factors[g].cut &&
            (!isNeutral(node, lists, f) || !isNeutral(next, other, f)) &&
            (!isNeutral(node, lists, g) || !isNeutral(next, other, g)))
          return;
    scale = wholeDims;
  }
  RedistributeCost part = meshwright::getRedistributeCost(factors, problem.elementBytes);
  Edge edge;
  edge.kind = ReshardStepKind::Redistribute;
  edge.cost = model.getRedistributeCost(part.axes, part.bytes / scale, part.peers);
  if (isTooDear(edge.cost))
    return;
  for (auto [i, axis] : llvm::enumerate(problem.axes))
    if (contains(part.axes, axis))
      edge.axes.push_back(i);
  relax(Node{placement, node.pads}, other, std::move(edge));
}

void Search::expand(int index) {
  current = index;
  node = visits[index].node;
  cost = visits[index].cost;
  lists = getLists(node.placement);
  localBytes = getLocalBytes(node, lists);
  changePads();
  reduce();
  slice();
  gather();
  exchange();
  makePartial();
  for (auto [placement, other] : llvm::zip_equal(placements, placementLists))
    permute(placement, other);
  // From a replicated value slices do.
  if (lists.unreduced.empty() && lists.totalShards != 1) {
    factorAxes = getFactorAxes(lists);
    for (auto [placement, other, axes] : llvm::zip_equal(placements, placementLists, placementAxes))
      redistribute(placement, other, axes);
  }
}

//===----------------------------------------------------------------------===//
// The search
//===----------------------------------------------------------------------===//

FailureOr<ReshardPlan> Search::run() {
  for (auto [f, factor] : llvm::enumerate(problem.factors)) {
    SmallVector<int64_t, 3> sizes{factor.size};
    for (int64_t size : {problem.source.padded[f], problem.target.padded[f]})
      if (!llvm::is_contained(sizes, size))
        sizes.push_back(size);
    padded.push_back(std::move(sizes));
    if (factor.cut == 1)
      wholeDims *= factor.size;
  }
  hasUnreduced = !problem.source.unreduced.empty() || !problem.target.unreduced.empty();
  Node source = encode(problem.source);
  targetNode = encode(problem.target);
  listPlacements();

  visits.emplace_back();
  visits.back().node = source;
  known.try_emplace(source, 0);
  if (source == targetNode)
    targetIndex = 0;
  queue.push({Cost().key(), 0});
  while (!queue.empty()) {
    int index = queue.top().second;
    queue.pop();
    if (visits[index].done)
      continue;
    visits[index].done = true;
    if (index == targetIndex)
      return buildPlan(index);
    expand(index);
  }
  return failure();
}

ReshardPlan Search::buildPlan(int last) {
  ReshardPlan plan;
  plan.factors.assign(problem.factors.begin(), problem.factors.end());
  plan.reduction = problem.reduction;
  plan.cost = visits[last].cost;
  SmallVector<int> path;
  for (int index = last; visits[index].previous >= 0; index = visits[index].previous)
    path.push_back(index);
  for (int index : llvm::reverse(path)) {
    Visit &visit = visits[index];
    ReshardStep step;
    step.kind = visit.edge.kind;
    step.from = visit.edge.from;
    step.to = visit.edge.to;
    step.before = decode(visits[visit.previous].node);
    step.after = decode(visit.node);
    step.cost = visit.edge.cost;
    step.resultBytes = getLocalBytes(visit.node, getLists(visit.node.placement));
    for (uint8_t part : visit.edge.axes)
      step.axes.push_back(problem.axes[part]);
    canonicalizeAxes(step.axes, model.getMesh());
    if (!plan.steps.empty()) {
      ReshardStep &above = plan.steps.back();
      // A slice pads what it cuts, and takes several axes at once.
      if (step.kind == ReshardStepKind::Slice && step.to == above.to &&
          (above.kind == ReshardStepKind::Slice || above.kind == ReshardStepKind::Pad)) {
        step.before = above.before;
        step.cost = step.cost + above.cost;
        step.axes.insert(step.axes.begin(), above.axes.begin(), above.axes.end());
        canonicalizeAxes(step.axes, model.getMesh());
        plan.steps.pop_back();
      } else if (step.kind == ReshardStepKind::Partial && above.kind == step.kind) {
        step.before = above.before;
        step.cost = step.cost + above.cost;
        step.axes.insert(step.axes.begin(), above.axes.begin(), above.axes.end());
        llvm::sort(step.axes);
        canonicalizeAxes(step.axes, model.getMesh());
        plan.steps.pop_back();
      }
    }
    auto isWhole = [](const ReshardState &state) {
      return llvm::all_of(state.axes, [](const AxisList &axes) { return axes.empty(); });
    };
    step.gathersWhole = !isWhole(step.before) && isWhole(step.after);
    plan.steps.push_back(std::move(step));
  }
  return plan;
}

} // namespace

FailureOr<ReshardPlan> meshwright::search(const ReshardProblem &problem, const CostModel &model,
                                          const ReshardOptions &options) {
  return Search(problem, model, options).run();
}

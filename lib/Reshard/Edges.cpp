//===- Edges.cpp - the moves out of a layout ------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/SearchGraph.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::detail;

//===----------------------------------------------------------------------===//
// Edges
//===----------------------------------------------------------------------===//

/// Returns true if an edge leaves rows where they are, or moves them from the source to the target and nothing else.
bool Search::keepsRows(const Node &next) const {
  const Node &source = visits.front().node;
  auto getRowPlace = [&](const Node &of, size_t part) {
    uint16_t place = of.placement[part];
    bool isOfRows = place != kFree && place != kUnreduced && problem.factors[place >> 8].dim < problem.rowDims;
    return isOfRows ? place : kFree;
  };
  bool movesRows = false, movesOthers = false, isDirect = true;
  for (size_t part = 0; part < problem.axes.size(); ++part) {
    uint16_t before = getRowPlace(node, part), after = getRowPlace(next, part);
    movesRows |= before != after;
    movesOthers |= before == after && node.placement[part] != next.placement[part];
    isDirect &= before == getRowPlace(source, part) && after == getRowPlace(targetNode, part);
  }
  return !movesRows || (isDirect && !movesOthers);
}

void Search::relax(Node next, const Lists &nextLists, Edge edge) {
  if (isTooDear(edge.cost))
    return;
  if (problem.rowDims > 0 && !edge.isRecut && !keepsRows(next))
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
    AxisParts subset;
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
    edge.kind = CollectiveKind::AllReduce;
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
      edge.kind = CollectiveKind::ReduceScatter;
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
      edge.kind = CollectiveKind::AllGather;
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
        // With another order of the axes, a redistribute costs the same.
        Node next = append(without, withoutLists, suffix, g);
        Lists nextLists = getLists(next.placement);
        if (wholeDims != 1 && !isConsistent(next, nextLists))
          continue;
        Edge edge;
        edge.kind = CollectiveKind::AllToAll;
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
      edge.kind = CollectiveKind::Slice;
      edge.axes.push_back(part);
      edge.to = f;
      edge.cost = model.getCost(CollectiveKind::Slice, problem.axes[part], localBytes);
      relax(next, getLists(next.placement), edge);
    }
}

void Search::makePartial() {
  // It can only help if the target is unreduced.
  if (problem.target.unreduced.empty())
    return;
  for (uint8_t part : lists.free) {
    Node next = node;
    next.placement[part] = kUnreduced;
    Edge edge;
    edge.kind = CollectiveKind::Partial;
    edge.axes.push_back(part);
    edge.cost = model.getCost(CollectiveKind::Partial, problem.axes[part], localBytes);
    relax(next, getLists(next.placement), edge);
  }
}

/// Pairs the digits of two lists of axes with as many chunks. Returns false if sizes do not
/// nest. Appends to `moved` the axes whose digits change place.
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

void Search::permute(const Placement &placement, const Lists &other, const Cost &rest) {
  if (other.totalShards != lists.totalShards || other.shards != lists.shards ||
      placement == node.placement || isTooDear({}, rest))
    return;
  // Between two cuts only a redistribute moves chunks.
  if (crosses(other.used, lists.used))
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
  // Any unreduced axis may replace any other. The axes that both sides have stay.
  AxisParts gone, come;
  for (uint8_t part : lists.unreduced)
    if (!llvm::is_contained(other.unreduced, part))
      gone.push_back(part);
  for (uint8_t part : other.unreduced)
    if (!llvm::is_contained(lists.unreduced, part))
      come.push_back(part);
  if (!match(gone, come))
    return;
  // The group consists of whole parts.
  AxisParts group;
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
  edge.kind = CollectiveKind::Permute;
  edge.axes = group;
  edge.cost = model.getCost(CollectiveKind::Permute, getAxes(group), localBytes);
  relax(std::move(next), other, std::move(edge));
}

/// Writes a whole run of parts, adjacent in a factor or all unreduced, by the parts of the
/// other cut. It costs nothing.
void Search::recut() {
  for (const auto &pair : recuts)
    for (auto [from, to] :
         {std::pair(&pair.first, &pair.second), std::pair(&pair.second, &pair.first)}) {
      Node next = node;
      uint16_t place = node.placement[from->front()];
      bool isRun = place != kFree;
      for (auto [i, part] : llvm::enumerate(*from)) {
        isRun &= node.placement[part] == (place == kUnreduced ? place : uint16_t(place + i));
        next.placement[part] = kFree;
      }
      if (!isRun)
        continue;
      for (auto [i, part] : llvm::enumerate(*to))
        next.placement[part] = place == kUnreduced ? place : uint16_t(place + i);
      // Parts behind the run get other indices.
      int more = int(to->size()) - int(from->size());
      for (auto [i, other] : llvm::enumerate(node.placement))
        if (place != kUnreduced && other != kFree && other != kUnreduced &&
            other >> 8 == place >> 8 && other >= place + from->size())
          next.placement[i] = uint16_t(other + more);
      Edge edge;
      edge.kind = CollectiveKind::Slice;
      edge.isRecut = true;
      Lists nextLists = getLists(next.placement);
      relax(std::move(next), nextLists, std::move(edge));
    }
}

FactorAxes Search::getFactorAxes(const Lists &lists) const {
  FactorAxes result;
  for (const AxisParts &parts : lists.factors) {
    result.emplace_back();
    for (uint8_t part : parts)
      result.back().push_back(problem.axes[part]);
  }
  return result;
}

/// Bounds the cost of any path to the target. Some rank has to receive the rows that it
/// needs and lacks, and no collective brings a rank more bytes than its cost counts.
Cost Search::getLeastRest(const Lists &lists, const FactorAxes &axes) const {
  Cost rest;
  if (!lists.unreduced.empty() || !problem.target.unreduced.empty() || wholeDims != 1 ||
      hasConflicts)
    return rest;
  SmallVector<RedistributeFactor, 8> factors;
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    int64_t size = padded[f].back();
    if (padded[f].size() != 1 || size % lists.shards[f] != 0)
      return rest;
    factors.push_back({size, axes[f], targetAxes[f]});
  }
  rest.bytes = meshwright::getRedistributeCost(factors, problem.elementBytes).bytes;
  if (rest.bytes == 0)
    return rest;
  rest.time = model.getLeastTime(rest.bytes);
  rest.launches = 1;
  return rest;
}

void Search::redistribute(const Placement &placement, const PadChoice &pads, const Lists &other,
                          const FactorAxes &otherAxes, const Cost &rest) {
  if (!other.unreduced.empty() || placement == node.placement || isTooDear({}, rest))
    return;
  Node next{placement, pads};
  SmallVector<RedistributeFactor, 8> factors;
  for (int f = 0, e = problem.factors.size(); f < e; ++f) {
    if (getPadded(next, f) % other.shards[f] != 0)
      return;
    factors.push_back({getPadded(node, f), factorAxes[f], otherAxes[f], getPadded(next, f)});
  }
  int64_t scale = 1;
  if (wholeDims != 1) {
    if (!isConsistent(next, other))
      return;
    // If both cuts of a dimension are in use, rows of one are not boxes of the other.
    for (int f = 0, e = problem.factors.size(); f < e; ++f)
      for (int g = 0; g < e; ++g)
        if (problem.factors[f].dim == problem.factors[g].dim &&
            problem.factors[f].cut < problem.factors[g].cut &&
            (!isNeutral(node, lists, f) || !isNeutral(next, other, f)) &&
            (!isNeutral(node, lists, g) || !isNeutral(next, other, g)))
          return;
    scale = wholeDims;
  }
  bool isCrossing = pads != node.pads || crosses(other.used, lists.used);
  if (isCrossing && placement != targetNode.placement &&
      int64_t(placements.size()) * model.getMesh().getNumRanks() > kMaxCrossings)
    return;
  RedistributeCost part = isCrossing
                              ? getCrossingCost(factors, problem.elementBytes, model.getMesh())
                              : meshwright::getRedistributeCost(factors, problem.elementBytes);
  Edge edge;
  edge.kind = CollectiveKind::Redistribute;
  edge.cost = model.getRedistributeCost(part.axes, part.bytes / scale, part.peers);
  if (isTooDear(edge.cost, rest))
    return;
  for (auto [i, axis] : llvm::enumerate(problem.axes))
    if (contains(part.axes, axis))
      edge.axes.push_back(i);
  relax(std::move(next), other, std::move(edge));
}

void Search::expand(int index) {
  current = index;
  node = visits[index].node;
  cost = visits[index].cost;
  lists = getLists(node.placement);
  localBytes = getLocalBytes(node, lists);
  factorAxes = getFactorAxes(lists);
  if (isTooDear({}, getLeastRest(lists, factorAxes)))
    return;
  changePads();
  reduce();
  slice();
  gather();
  exchange();
  makePartial();
  recut();
  for (size_t i = 0; i < placements.size(); ++i)
    permute(placements[i], placementLists[i], placementRest[i]);
  // From a replicated value, slices lead to all layouts.
  if (lists.unreduced.empty() && lists.totalShards != 1)
    for (size_t i = 0; i < placements.size(); ++i) {
      redistribute(placements[i], node.pads, placementLists[i], placementAxes[i], placementRest[i]);
      // Between cuts that do not fit, the two sides have different padded sizes.
      if (i == 0 && node.pads != targetNode.pads && crosses(placementLists[i].used, lists.used))
        redistribute(placements[i], targetNode.pads, placementLists[i], placementAxes[i],
                     placementRest[i]);
    }
}

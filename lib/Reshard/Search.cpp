//===- Search.cpp - shortest paths over layouts ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Dijkstra's algorithm over layouts.
// - A node is a layout: the factor that each axis part shards, and the padded size of each
//   factor (`Node`). An edge is a collective or a local step (`Edge`).
// - `listPlacements` lists the layouts to which permute and redistribute lead; all other
//   edges are found from the node (`expand`).
// - `getLeastRest` bounds the cost from a node to the target, and `isTooDear` skips edges
//   that cannot be on the best path.
// - `SmallerProblem` leaves out axes where there are many placements.
// - Complexity: a node has O(placements + 2^parts + parts * factors) edges. At most
//   kMaxNodes nodes are kept. The number of ranks has no influence, except between cuts
//   that do not fit (`getCrossingCost`).
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/SearchGraph.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;
using namespace meshwright::detail;

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

/// Returns true if `part` is a part of `axis`.
static bool isWithin(const Axis &part, const Axis &axis) {
  return part.axis == axis.axis && part.pre % axis.pre == 0 &&
         axis.pre * axis.size % (part.pre * part.size) == 0;
}

Node Search::encode(const ReshardLayout &layout, uint8_t cut) {
  Node result;
  result.placement.assign(problem.axes.size(), kFree);
  auto isPart = [&](size_t i, const Axis &axis) {
    return (problem.cuts[i] & cut) != 0 && isWithin(problem.axes[i], axis);
  };
  for (auto [f, axes] : llvm::enumerate(layout.axes)) {
    uint16_t place = 0;
    for (const Axis &axis : axes)
      for (size_t i = 0; i < problem.axes.size(); ++i)
        if (isPart(i, axis))
          result.placement[i] = uint16_t(f << 8 | place++);
  }
  for (const Axis &axis : layout.unreduced)
    for (size_t i = 0; i < problem.axes.size(); ++i)
      if (isPart(i, axis))
        result.placement[i] = kUnreduced;
  for (auto [f, size] : llvm::enumerate(layout.padded)) {
    int64_t wanted = size;
    result.pads.push_back(llvm::find(padded[f], wanted) - padded[f].begin());
  }
  return result;
}

Lists Search::getLists(const Placement &placement) const {
  Lists result;
  result.factors.resize(problem.factors.size());
  result.shards.assign(problem.factors.size(), 1);
  for (auto [i, place] : llvm::enumerate(placement))
    if (place != kFree)
      result.used |= AxisPartSet(1) << i;
  for (auto [i, place] : llvm::enumerate(placement)) {
    if (place == kFree) {
      if (conflicts(result.used, i))
        continue;
      result.free.push_back(i);
    } else if (place == kUnreduced) {
      result.unreduced.push_back(i);
    } else {
      AxisParts &parts = result.factors[place >> 8];
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

ReshardLayout Search::decode(const Node &node) const {
  Lists lists = getLists(node.placement);
  ReshardLayout layout;
  for (auto [f, parts] : llvm::enumerate(lists.factors)) {
    layout.axes.push_back(getAxes(parts));
    layout.padded.push_back(getPadded(node, f));
  }
  layout.unreduced = getAxes(lists.unreduced);
  return layout;
}

bool Search::crosses(AxisPartSet a, AxisPartSet b) const {
  for (size_t part = 0; hasConflicts && part < problem.axes.size(); ++part)
    if ((a >> part & 1) && conflicts(b, part))
      return true;
  return false;
}

/// Returns true if the factor's cut may be in use: a dimension uses one of its two cuts.
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
    // The cut that is not in use is unsharded.
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
  // Each axis part in turn is free, unreduced, or inserted among the axes of a factor.
  std::vector<Lists> partial(1);
  partial[0].factors.resize(problem.factors.size());
  for (uint8_t axis = 0; axis < problem.axes.size() && allPlacements; ++axis) {
    std::vector<Lists> next;
    for (const Lists &base : partial) {
      next.push_back(base);
      if (conflicts(base.used, axis))
        continue;
      auto push = [&]() -> Lists & {
        next.push_back(base);
        next.back().used |= AxisPartSet(1) << axis;
        return next.back();
      };
      if (hasUnreduced)
        push().unreduced.push_back(axis);
      for (int f = 0, e = problem.factors.size(); f < e; ++f) {
        int64_t product = getProduct(base.factors[f]) * problem.axes[axis].size;
        if (llvm::none_of(padded[f], [&](int64_t size) { return size % product == 0; }))
          continue;
        for (size_t place = 0; place <= base.factors[f].size(); ++place) {
          AxisParts &parts = push().factors[f];
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
  // The target comes first, because its cost bounds all others.
  placements.push_back(targetNode.placement);
  if (allPlacements) {
    for (const Lists &entry : partial) {
      Placement placement(problem.axes.size(), kFree);
      for (auto [f, parts] : llvm::enumerate(entry.factors))
        for (auto [place, part] : llvm::enumerate(parts))
          placement[part] = uint16_t(f << 8 | place);
      for (uint8_t part : entry.unreduced)
        placement[part] = kUnreduced;
      if (placement != targetNode.placement)
        placements.push_back(std::move(placement));
    }
  }
  targetAxes = getFactorAxes(getLists(targetNode.placement));
  for (const Placement &placement : placements) {
    placementLists.push_back(getLists(placement));
    placementAxes.push_back(getFactorAxes(placementLists.back()));
    placementRest.push_back(getLeastRest(placementLists.back(), placementAxes.back()));
  }
}

/// Finds runs of parts between two borders that both cuts have. The parts of one cut there
/// are the same axis as the parts of the other.
void Search::findRecuts() {
  if (!hasConflicts)
    return;
  for (size_t a = 0; a < model.getMesh().getAxes().size(); ++a) {
    AxisParts parts[2];
    int64_t ends[2] = {1, 1};
    SmallVector<uint8_t> mine[2];
    for (auto [i, axis] : llvm::enumerate(problem.axes))
      for (int cut : {0, 1})
        if (axis.axis == int(a) && (problem.cuts[i] >> cut & 1))
          mine[cut].push_back(i);
    size_t next[2] = {0, 0};
    while (next[0] < mine[0].size() || next[1] < mine[1].size()) {
      int behind = ends[0] <= ends[1] && next[0] < mine[0].size() ? 0 : 1;
      uint8_t part = mine[behind][next[behind]++];
      parts[behind].push_back(part);
      ends[behind] = problem.axes[part].pre * problem.axes[part].size;
      if (ends[0] != ends[1])
        continue;
      if (parts[0] != parts[1])
        recuts.push_back({parts[0], parts[1]});
      parts[0].clear();
      parts[1].clear();
    }
  }
}

//===----------------------------------------------------------------------===//
// The search
//===----------------------------------------------------------------------===//

FailureOr<ReshardPlan> Search::run() {
  for (auto [f, factor] : llvm::enumerate(problem.factors)) {
    // Padding is a tail in contiguous order alone.
    SmallVector<int64_t, 3> sizes;
    if (factor.order == TokenOrder::Contiguous)
      sizes.push_back(factor.size);
    for (int64_t size : {problem.source.padded[f], problem.target.padded[f]})
      if (!llvm::is_contained(sizes, size))
        sizes.push_back(size);
    padded.push_back(std::move(sizes));
    if (factor.cut == 1)
      wholeDims *= factor.size;
  }
  hasUnreduced = !problem.source.unreduced.empty() || !problem.target.unreduced.empty();
  for (const Axis &axis : problem.axes) {
    AxisPartSet &set = conflicting.emplace_back(0);
    for (auto [i, other] : llvm::enumerate(problem.axes))
      if (other != axis && axis.overlaps(other))
        set |= AxisPartSet(1) << i;
    hasConflicts |= set != 0;
  }
  findRecuts();
  Node source = encode(problem.source, 1);
  targetNode = encode(problem.target, 2);
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
    if (!visits[index].edge.isRecut)
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
      // A slice pads the factor that it cuts, and takes several axes at once.
      if (step.kind == CollectiveKind::Slice && step.to == above.to &&
          (above.kind == CollectiveKind::Slice || above.isPad())) {
        step.before = above.before;
        step.cost = step.cost + above.cost;
        step.axes.insert(step.axes.begin(), above.axes.begin(), above.axes.end());
        canonicalizeAxes(step.axes, model.getMesh());
        plan.steps.pop_back();
      } else if (step.kind == CollectiveKind::Partial && above.kind == step.kind) {
        step.before = above.before;
        step.cost = step.cost + above.cost;
        step.axes.insert(step.axes.begin(), above.axes.begin(), above.axes.end());
        llvm::sort(step.axes);
        canonicalizeAxes(step.axes, model.getMesh());
        plan.steps.pop_back();
      }
    }
    auto isWhole = [](const ReshardLayout &layout) {
      return llvm::all_of(layout.axes, [](const AxisList &axes) { return axes.empty(); });
    };
    step.gathersWhole = !isWhole(step.before) && isWhole(step.after);
    plan.steps.push_back(std::move(step));
  }
  return plan;
}

//===----------------------------------------------------------------------===//
// Axes that no move needs
//===----------------------------------------------------------------------===//

namespace {
/// A problem of many placements without the parts of axes that stay where they are, and without some parts that
/// neither layout uses. Without them the best path may be lost: ranks that already have their chunk, or the
/// same chunk, may pass others on over faster links.
///
/// - A factor without padding whose axes start alike in source and target keeps these axes: chunks move
///   among ranks that agree on them. The search sees one such chunk as the whole factor.
/// - Of the axes that neither layout uses the smallest are left out, until there are few placements.
class SmallerProblem {
public:
  SmallerProblem(const ReshardProblem &whole, MeshAttr mesh) : whole(whole), mesh(mesh), problem(whole) {
    common.resize(whole.factors.size());
    // Overlapping parts of two cuts depend on each other.
    if (llvm::any_of(whole.cuts, [](uint8_t cuts) { return cuts != 3; }) || !hasMany())
      return;
    for (size_t f = 0; f < whole.factors.size(); ++f)
      keepCommon(f);
    leaveOutIdle();
  }

  const ReshardProblem &get() const { return problem; }

  /// The plan of the whole problem that has the same steps.
  ReshardPlan extend(ReshardPlan plan) const {
    plan.factors.assign(whole.factors.begin(), whole.factors.end());
    bool isSharded = llvm::any_of(common, [](const AxisList &axes) { return !axes.empty(); });
    for (ReshardStep &step : plan.steps) {
      step.gathersWhole &= !isSharded;
      for (ReshardLayout *layout : {&step.before, &step.after})
        for (auto [f, axes] : llvm::enumerate(common)) {
          if (axes.empty())
            continue;
          AxisList all = axes;
          all.append(layout->axes[f]);
          canonicalizeAxes(all, mesh);
          layout->axes[f] = std::move(all);
          layout->padded[f] *= getNumShards(axes);
        }
    }
    return plan;
  }

private:
  /// The parts of axes, in their order.
  AxisList split(ArrayRef<Axis> axes) const {
    AxisList parts;
    for (const Axis &axis : axes)
      for (const Axis &part : whole.axes)
        if (isWithin(part, axis))
          parts.push_back(part);
    return parts;
  }

  void leaveOut(const Axis &part) {
    size_t i = llvm::find(problem.axes, part) - problem.axes.begin();
    problem.axes.erase(problem.axes.begin() + i);
    problem.cuts.erase(problem.cuts.begin() + i);
  }

  void keepCommon(size_t f) {
    ReshardFactor &factor = problem.factors[f];
    int64_t &source = problem.source.padded[f], &target = problem.target.padded[f];
    if (factor.size != source || source != target || factor.runtimeSize)
      return;
    AxisList from = split(whole.source.axes[f]), to = split(whole.target.axes[f]);
    size_t count = 0;
    while (count < std::min(from.size(), to.size()) && from[count] == to[count])
      ++count;
    common[f].append(from.begin(), from.begin() + count);
    for (const Axis &part : common[f])
      leaveOut(part);
    factor.size = source = target = factor.size / getNumShards(common[f]);
    problem.source.axes[f].assign(from.begin() + count, from.end());
    problem.target.axes[f].assign(to.begin() + count, to.end());
  }

  /// Returns true if the search may list many placements.
  bool hasMany() const {
    int64_t count = 1;
    int64_t inserted = 1 + !(problem.source.unreduced.empty() && problem.target.unreduced.empty());
    for (const Axis &part : problem.axes) {
      auto mayShard = [&](size_t f) {
        return llvm::any_of(std::initializer_list<int64_t>{problem.factors[f].size, problem.source.padded[f],
                                                           problem.target.padded[f]},
                            [&](int64_t size) { return size % part.size == 0; });
      };
      int64_t factors = llvm::count_if(llvm::seq<size_t>(0, problem.factors.size()), mayShard);
      count *= inserted++ + factors;
      if (count > kManyPlacements)
        return true;
    }
    return false;
  }

  void leaveOutIdle() {
    AxisList idle;
    auto isUsed = [&](const ReshardLayout &layout, const Axis &part) {
      auto holds = [&](const AxisList &axes) {
        return llvm::any_of(axes, [&](const Axis &axis) { return isWithin(part, axis); });
      };
      return holds(layout.unreduced) || llvm::any_of(layout.axes, holds);
    };
    for (const Axis &part : problem.axes)
      if (!isUsed(problem.source, part) && !isUsed(problem.target, part))
        idle.push_back(part);
    llvm::stable_sort(idle, [](const Axis &a, const Axis &b) { return a.size > b.size; });
    while (!idle.empty() && hasMany())
      leaveOut(idle.pop_back_val());
  }

  /// A search takes some tens of nanoseconds for each pair of placements.
  static constexpr int64_t kManyPlacements = 400;

  const ReshardProblem &whole;
  MeshAttr mesh;
  ReshardProblem problem;
  /// Of each factor the axes that stay.
  SmallVector<AxisList, 8> common;
};
} // namespace

FailureOr<ReshardPlan> meshwright::search(const ReshardProblem &problem, const CostModel &model,
                                          const ReshardOptions &options) {
  SmallerProblem smaller(problem, model.getMesh());
  FailureOr<ReshardPlan> plan = Search(smaller.get(), model, options).run();
  if (failed(plan))
    return failure();
  return smaller.extend(std::move(*plan));
}

//===- Reshard.cpp - from one layout to another ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Cuts two layouts into common factors and axis parts, and remembers plans.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/Reshard.h"

#include "meshwright/lib/Reshard/Search.h"

#include <unordered_map>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

llvm::StringRef meshwright::stringify(ReshardStepKind kind) {
  switch (kind) {
  case ReshardStepKind::AllReduce:
    return "all_reduce";
  case ReshardStepKind::ReduceScatter:
    return "reduce_scatter";
  case ReshardStepKind::AllGather:
    return "all_gather";
  case ReshardStepKind::AllToAll:
    return "all_to_all";
  case ReshardStepKind::Permute:
    return "permute";
  case ReshardStepKind::Redistribute:
    return "redistribute";
  case ReshardStepKind::Slice:
    return "slice";
  case ReshardStepKind::Partial:
    return "partial";
  case ReshardStepKind::Pad:
    return "pad";
  case ReshardStepKind::Strip:
    return "strip";
  }
  return "";
}

//===----------------------------------------------------------------------===//
// Common factors and axis parts
//===----------------------------------------------------------------------===//

namespace {

using FactorPair = std::pair<LayoutFactor, LayoutFactor>;

/// The factors of a dimension on both sides, cut where either is; none where
/// the cuts do not fit.
std::optional<SmallVector<FactorPair>> refine(const DimLayout &from, const DimLayout &to,
                                              MeshAttr mesh) {
  SmallVector<FactorPair> pairs;
  SmallVector<LayoutFactor> a(from.factors.begin(), from.factors.end());
  SmallVector<LayoutFactor> b(to.factors.begin(), to.factors.end());
  while (!a.empty() && !b.empty()) {
    LayoutFactor x = a.pop_back_val(), y = b.pop_back_val(), upper, lower;
    if (x.size > y.size) {
      if (!splitFactor(x, y.size, mesh, upper, lower))
        return std::nullopt;
      a.push_back(upper);
      x = lower;
    } else if (y.size > x.size) {
      if (!splitFactor(y, x.size, mesh, upper, lower))
        return std::nullopt;
      b.push_back(upper);
      y = lower;
    }
    pairs.push_back({std::move(x), std::move(y)});
  }
  // What is left over has size 1, but may be padded.
  LayoutFactor unit;
  for (; !a.empty(); a.pop_back())
    pairs.push_back({a.back(), unit});
  for (; !b.empty(); b.pop_back())
    pairs.push_back({unit, b.back()});
  std::reverse(pairs.begin(), pairs.end());
  return pairs;
}

bool isUniform(const DimLayout &dim) {
  return llvm::any_of(dim.factors, [](const LayoutFactor &factor) { return factor.uniform; });
}

/// Cuts the mesh's axes at all borders of the parts that the layouts name;
/// false where two parts overlap without one dividing the other.
bool cutAxes(MeshAttr mesh, ArrayRef<Axis> named, SmallVectorImpl<Axis> &parts) {
  for (auto [index, meshAxis] : llvm::enumerate(mesh.getAxes())) {
    SmallVector<int64_t> cuts{1, meshAxis.getSize()};
    for (const Axis &axis : named)
      if (axis.axis == int(index))
        cuts.append({axis.pre, axis.pre * axis.size});
    llvm::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (cuts[i + 1] % cuts[i] != 0)
        return false;
      parts.push_back({int(index), cuts[i], cuts[i + 1] / cuts[i]});
    }
  }
  return true;
}

/// Both layouts without the axes that this plan does not touch, as a problem for
/// the search. `strip` receives the sizes to which uniform dimensions are cut
/// first, as steps.
FailureOr<ReshardProblem> buildProblem(const Layout &from, const Layout &to, int64_t elementBytes,
                                       MeshAttr mesh, std::vector<ReshardStep> &strips) {
  if (from.getRank() != to.getRank())
    return failure();
  if (from.isUnreduced() && to.isUnreduced() && from.reduction != to.reduction)
    return failure();
  ReshardProblem problem;
  problem.elementBytes = elementBytes;
  problem.reduction = from.isUnreduced() ? from.reduction : to.reduction;
  problem.source.unreduced = from.unreduced;
  problem.target.unreduced = to.unreduced;
  auto add = [&](int dim, int cut, const LayoutFactor &a, const LayoutFactor &b) {
    problem.factors.push_back({dim, cut, a.size});
    problem.source.axes.push_back(a.axes);
    problem.source.padded.push_back(a.padded);
    problem.target.axes.push_back(b.axes);
    problem.target.padded.push_back(b.padded);
  };
  SmallVector<std::pair<int, int64_t>> uniformCuts;
  for (int64_t d = 0; d < from.getRank(); ++d) {
    const DimLayout &source = from.dims[d], &target = to.dims[d];
    if (isUniform(source) || isUniform(target)) {
      // A value that does not depend on the dimension has the target's layout
      // once it is as long as a chunk.
      const DimLayout &shape = isUniform(source) ? target : source;
      int64_t have = source.getLocalSize(), want = target.getLocalSize();
      if (have < want || (have > want && shape.factors.size() != 1))
        return failure();
      if (have > want)
        uniformCuts.push_back({int(problem.factors.size()), have});
      for (const LayoutFactor &factor : shape.factors)
        add(d, 0, factor, factor);
      continue;
    }
    if (source.getGlobalSize() != target.getGlobalSize())
      return failure();
    if (auto pairs = refine(source, target, mesh)) {
      for (const FactorPair &pair : *pairs)
        add(d, 0, pair.first, pair.second);
      continue;
    }
    // No common cut: whole in between, so both cuts are listed.
    for (bool isTarget : {false, true})
      for (const LayoutFactor &factor : (isTarget ? target : source).factors) {
        LayoutFactor whole;
        whole.size = whole.padded = factor.size;
        add(d, isTarget, isTarget ? whole : factor, isTarget ? factor : whole);
      }
  }
  AxisList named;
  for (const ReshardState *state : {&problem.source, &problem.target}) {
    named.append(state->unreduced);
    for (const AxisList &axes : state->axes)
      named.append(axes);
  }
  if (!cutAxes(mesh, named, problem.axes))
    return failure();
  for (auto [factor, have] : uniformCuts) {
    ReshardStep step;
    step.kind = ReshardStepKind::Strip;
    step.to = factor;
    step.before = step.after = problem.source;
    step.before.padded[factor] = have * getNumShards(problem.source.axes[factor]);
    for (ReshardStep &earlier : strips)
      earlier.before.padded[factor] = earlier.after.padded[factor] = step.before.padded[factor];
    step.cost.localSteps = 1;
    strips.push_back(std::move(step));
  }
  return problem;
}

} // namespace

//===----------------------------------------------------------------------===//
// Resharder
//===----------------------------------------------------------------------===//

struct Resharder::Memo {
  struct Key {
    Layout from, to;
    int64_t elementBytes;
    bool operator==(const Key &other) const {
      return elementBytes == other.elementBytes && same(from, other.from) && same(to, other.to);
    }
    static bool same(const Layout &a, const Layout &b) {
      if (!a.sameShardingAs(b))
        return false;
      for (auto [x, y] : llvm::zip_equal(a.dims, b.dims))
        for (auto [f, g] : llvm::zip_equal(x.factors, y.factors))
          if (f.uniform != g.uniform)
            return false;
      return true;
    }
  };
  struct Hash {
    size_t operator()(const Key &key) const {
      return llvm::hash_combine(key.elementBytes, hash_value(key.from), hash_value(key.to));
    }
  };
  ReshardPlan nothing;
  std::unordered_map<Key, std::optional<ReshardPlan>, Hash> plans;
};

Resharder::Resharder(MeshAttr mesh, FlatSymbolRefAttr symbol, ReshardOptions options)
    : mesh(mesh), symbol(symbol), options(options), model(mesh), memo(new Memo) {}
Resharder::~Resharder() = default;

static bool isAnyUniform(const Layout &layout) { return llvm::any_of(layout.dims, isUniform); }

FailureOr<const ReshardPlan *> Resharder::plan(const Layout &from, const Layout &to,
                                               Type elementType) {
  // The common case needs no lookup.
  if (from.sameShardingAs(to) && !isAnyUniform(from) && !isAnyUniform(to))
    return &memo->nothing;
  Memo::Key key{from, to, getElementBytes(elementType)};
  canonicalize(key.from, mesh);
  canonicalize(key.to, mesh);
  auto [it, isNew] = memo->plans.try_emplace(key);
  std::optional<ReshardPlan> &entry = it->second;
  if (isNew) {
    std::vector<ReshardStep> strips;
    auto problem = buildProblem(key.from, key.to, key.elementBytes, mesh, strips);
    if (succeeded(problem)) {
      FailureOr<ReshardPlan> found = search(*problem, model, options);
      if (succeeded(found)) {
        found->steps.insert(found->steps.begin(), strips.begin(), strips.end());
        for (const ReshardStep &step : strips)
          found->cost = found->cost + step.cost;
        entry = std::move(*found);
      }
    }
  }
  if (!entry)
    return failure();
  return &*entry;
}

FailureOr<Value> Resharder::reshard(OpBuilder &builder, Location location, Value value,
                                    const Layout &from, const Layout &to) {
  auto found = plan(from, to, cast<RankedTensorType>(value.getType()).getElementType());
  if (failed(found))
    return failure();
  return emit(builder, location, value, **found, mesh, symbol);
}

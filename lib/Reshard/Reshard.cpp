//===- Reshard.cpp - from one layout to another ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Cuts two layouts into common factors and axis parts, and caches plans.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Reshard/Reshard.h"

#include "meshwright/dialects/Dist/Refine.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Reshard/Search.h"

#include <unordered_map>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

//===----------------------------------------------------------------------===//
// Common factors and axis parts
//===----------------------------------------------------------------------===//

namespace {

/// The most parts of axes in a search, one bit each of an AxisPartSet.
constexpr size_t kMaxAxisParts = 64;

bool isUniform(const DimLayout &dim) {
  return llvm::any_of(dim.factors, [](const LayoutFactor &factor) { return factor.uniform; });
}

/// The borders at which the parts that a layout names cut an axis. Returns false if two of
/// them overlap and neither divides the other.
bool getBorders(int axis, int64_t size, ArrayRef<Axis> named, SmallVectorImpl<int64_t> &borders) {
  borders.assign({1, size});
  for (const Axis &part : named)
    if (part.axis == axis)
      borders.append({part.pre, part.pre * part.size});
  llvm::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  for (size_t i = 0; i + 1 < borders.size(); ++i)
    if (borders[i + 1] % borders[i] != 0)
      return false;
  return true;
}

/// Cuts the mesh's axes at the borders of the parts that either layout names. Lists the
/// parts of both cuts if they do not fit each other.
bool cutAxes(MeshAttr mesh, const ReshardLayout &source, const ReshardLayout &target,
             ReshardProblem &problem) {
  AxisList named[2];
  for (auto [layout, list] : {std::pair(&source, &named[0]), std::pair(&target, &named[1])}) {
    list->append(layout->unreduced);
    for (const AxisList &axes : layout->axes)
      list->append(axes);
  }
  for (auto [index, meshAxis] : llvm::enumerate(mesh.getAxes())) {
    SmallVector<int64_t> borders[2];
    for (int cut : {0, 1})
      if (!getBorders(index, meshAxis.getSize(), named[cut], borders[cut]))
        return false;
    // A border that fits all borders of the other layout cuts both.
    for (int cut : {0, 1}) {
      SmallVector<int64_t> more;
      for (int64_t border : borders[!cut])
        if (llvm::all_of(borders[cut],
                         [&](int64_t own) { return own % border == 0 || border % own == 0; }))
          more.push_back(border);
      borders[cut].append(more);
      llvm::sort(borders[cut]);
      borders[cut].erase(std::unique(borders[cut].begin(), borders[cut].end()), borders[cut].end());
    }
    SmallVector<std::pair<Axis, uint8_t>> parts;
    for (int cut : {0, 1})
      for (size_t i = 0; i + 1 < borders[cut].size(); ++i) {
        Axis part{int(index), borders[cut][i], borders[cut][i + 1] / borders[cut][i]};
        auto *known = llvm::find_if(parts, [&](auto &entry) { return entry.first == part; });
        if (known == parts.end())
          parts.push_back({part, uint8_t(1 << cut)});
        else
          known->second |= 1 << cut;
      }
    llvm::sort(parts);
    for (auto [part, cuts] : parts) {
      problem.axes.push_back(part);
      problem.cuts.push_back(cuts);
    }
  }
  return problem.axes.size() <= kMaxAxisParts;
}

/// The problem of a search between two layouts: common factors, and axes cut into common
/// parts. `strips` receives steps that first cut uniform dimensions to their final size.
FailureOr<ReshardProblem> buildProblem(const Layout &from, const Layout &to, int64_t elementBytes,
                                       MeshAttr mesh, std::vector<ReshardStep> &strips) {
  if (from.getRank() != to.getRank())
    return failure();
  if (from.isUnreduced() && to.isUnreduced() && from.getReduction() != to.getReduction())
    return failure();
  ReshardProblem problem;
  problem.elementBytes = elementBytes;
  problem.reduction = from.isUnreduced() ? from.getReduction() : to.getReduction();
  problem.source.unreduced = from.getUnreduced();
  problem.target.unreduced = to.getUnreduced();
  auto add = [&](int dim, int cut, const LayoutFactor &a, const LayoutFactor &b) {
    problem.factors.push_back({dim, cut, a.size, a.order, a.orderRanks,
                               a.runtimeSize ? a.runtimeSize : b.runtimeSize});
    problem.source.axes.push_back(a.axes);
    problem.source.padded.push_back(a.padded);
    problem.target.axes.push_back(b.axes);
    problem.target.padded.push_back(b.padded);
  };
  SmallVector<std::pair<int, int64_t>> uniformCuts;
  for (int64_t d = 0; d < from.getRank(); ++d) {
    const DimLayout &source = from.dims[d], &target = to.dims[d];
    if (isUniform(source) || isUniform(target)) {
      // A value that does not depend on the dimension has the target's layout if it is as
      // long as a chunk.
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
        if (!pair.first.sameOrderAs(pair.second) ||
            (!pair.first.isContiguous() && pair.first.padded != pair.second.padded))
          return failure();
      for (const FactorPair &pair : *pairs)
        add(d, 0, pair.first, pair.second);
      continue;
    }
    for (const DimLayout *side : {&source, &target})
      if (llvm::any_of(side->factors, [](const LayoutFactor &f) { return !f.isContiguous(); }))
        return failure();
    // There is no common cut. The dimension is whole in between, and both cuts are listed.
    for (bool isTarget : {false, true})
      for (const LayoutFactor &factor : (isTarget ? target : source).factors) {
        LayoutFactor whole;
        whole.size = whole.padded = factor.size;
        add(d, isTarget, isTarget ? whole : factor, isTarget ? factor : whole);
      }
  }
  if (!cutAxes(mesh, problem.source, problem.target, problem))
    return failure();
  for (auto [factor, have] : uniformCuts) {
    ReshardStep step;
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
    int64_t elementBytes, rowDims;
    bool operator==(const Key &other) const {
      return elementBytes == other.elementBytes && rowDims == other.rowDims && same(from, other.from) &&
             same(to, other.to);
    }
    static bool same(const Layout &a, const Layout &b) {
      if (!a.sameShardingAs(b))
        return false;
      for (auto [x, y] : llvm::zip_equal(a.dims, b.dims))
        for (auto [f, g] : llvm::zip_equal(x.factors, y.factors))
          if (f.uniform != g.uniform || f.runtimeSize != g.runtimeSize)
            return false;
      return true;
    }
  };
  struct Hash {
    size_t operator()(const Key &key) const {
      return llvm::hash_combine(key.elementBytes, key.rowDims, hash_value(key.from), hash_value(key.to));
    }
  };
  ReshardPlan nothing;
  std::unordered_map<Key, std::optional<ReshardPlan>, Hash> plans;
};

namespace {
/// The plans of a context, by mesh and the most bytes of a value in between.
using KeptPlans = llvm::DenseMap<std::pair<MeshAttr, int64_t>, std::shared_ptr<Resharder::Memo>>;
} // namespace

static std::shared_ptr<void> &getKeptPlans(MLIRContext *context) {
  return context->getOrLoadDialect<DistDialect>()->getKept(TypeID::get<KeptPlans>());
}

void meshwright::keepReshardPlans(MLIRContext *context) {
  std::shared_ptr<void> &kept = getKeptPlans(context);
  if (!kept)
    kept = std::make_shared<KeptPlans>();
}

Resharder::Resharder(MeshAttr mesh, FlatSymbolRefAttr symbol, ReshardOptions options)
    : mesh(mesh), symbol(symbol), options(options), model(mesh) {
  auto *kept = static_cast<KeptPlans *>(getKeptPlans(mesh.getContext()).get());
  std::shared_ptr<Memo> own;
  std::shared_ptr<Memo> &place = kept ? (*kept)[{mesh, options.maxIntermediateBytes}] : own;
  if (!place)
    place = std::make_shared<Memo>();
  memo = place;
}
Resharder::~Resharder() = default;

int64_t meshwright::getNumRowDims(Value value) {
  return nn::getRouted(value.getType()) ? 1 + nn::getNumTokenDims(value) : 0;
}

static bool isAnyUniform(const Layout &layout) { return llvm::any_of(layout.dims, isUniform); }

FailureOr<const ReshardPlan *> Resharder::plan(const Layout &from, const Layout &to,
                                               Type elementType, int64_t rowDims) {
  // Equal layouts, the common case, need no lookup.
  if (from.sameShardingAs(to) && !isAnyUniform(from) && !isAnyUniform(to))
    return &memo->nothing;
  Memo::Key key{from, to, getElementBytes(elementType), rowDims};
  canonicalize(key.from, mesh);
  canonicalize(key.to, mesh);
  auto [it, isNew] = memo->plans.try_emplace(key);
  std::optional<ReshardPlan> &entry = it->second;
  if (isNew) {
    std::vector<ReshardStep> strips;
    auto problem = buildProblem(key.from, key.to, key.elementBytes, mesh, strips);
    if (succeeded(problem)) {
      problem->rowDims = rowDims;
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
  auto found = plan(from, to, getElementTypeOrSelf(value.getType()), getNumRowDims(value));
  if (failed(found))
    return failure();
  return emit(builder, location, value, **found, mesh, symbol);
}

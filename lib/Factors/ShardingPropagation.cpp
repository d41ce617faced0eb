//===- ShardingPropagation.cpp - shardings to a fixed point ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/ShardingPropagation.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Stages/StageMeshes.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {
enum Round { Parameters, Inputs, Interior, NumRounds };
} // namespace

/// Axes over which the op's operands are sharded in what it sums over.
AxisList ShardingPropagation::getContractedAxes(Operation *op,
                                                const FactorAnalysis &factors) const {
  AxisList axes;
  const FactorRule &rule = factors.getFactors(op).rule;
  if (llvm::none_of(rule.factors,
                    [](const RuleFactor &f) { return f.kind == FactorKind::Contracted; }))
    return axes;
  for (auto [operand, dims] : llvm::zip(op->getOperands(), rule.operands))
    for (auto [d, dim] : llvm::enumerate(dims))
      for (int factor : dim)
        if (rule.factors[factor].kind == FactorKind::Contracted)
          for (const AxisList &leaf : getState(operand).sharding.dims[d])
            axes.append(leaf.begin(), leaf.end());
  return axes;
}

/// For every leaf of every factor that may be sharded, the places where it
/// occurs in the op.
ArrayRef<ShardingPropagation::Group> ShardingPropagation::getGroups(Operation *op,
                                                                    const FactorAnalysis &factors) {
  auto [it, inserted] = groups.try_emplace(op);
  if (!inserted)
    return it->second;
  // How a stage lays out what another made says nothing of the other.
  if (auto constrain = dyn_cast<ConstrainOp>(op); constrain && isCrossing(constrain))
    return it->second;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  SmallVector<int, 8> first;
  int count = 0;
  for (const auto &leaves : opFactors.leaves) {
    first.push_back(count);
    count += leaves.size();
  }
  std::vector<Group> all(count);
  auto add = [&](Value value, const FactorRule::ValueFactors &dims) {
    for (auto [d, dim] : llvm::enumerate(dims)) {
      int leaf = 0;
      int leaves = factors.getLeaves(value)[d].size();
      for (int factor : dim)
        for (size_t j = 0; j < opFactors.leaves[factor].size() && leaf < leaves; ++j, ++leaf)
          if (opFactors.rule.factors[factor].kind != FactorKind::Special)
            all[first[factor] + j].push_back({value, int(d), leaf});
    }
  };
  for (auto [operand, dims] : llvm::zip(op->getOperands(), opFactors.rule.operands))
    add(operand, dims);
  for (auto [result, dims] : llvm::zip(op->getResults(), opFactors.rule.results))
    add(result, dims);
  llvm::erase_if(all, [](const Group &group) { return group.size() < 2; });
  it->second = std::move(all);
  return it->second;
}

void ShardingPropagation::visit(Operation *op, const FactorAnalysis &factors, int round,
                                bool report, llvm::function_ref<void(Value)> changed) {
  AxisList contracted = getContractedAxes(op, factors);
  for (const Group &group : getGroups(op, factors)) {
    const Place *source = nullptr;
    for (const Place &place : group) {
      const State &state = getState(place.value);
      const AxisList &axes = state.sharding.dims[place.dim][place.leaf];
      if (axes.empty() || state.round > round)
        continue;
      if (!source) {
        source = &place;
        continue;
      }
      const State &other = getState(source->value);
      const AxisList &otherAxes = other.sharding.dims[source->dim][source->leaf];
      if (report && axes != otherAxes && state.origin && other.origin)
        conflicts.push_back(
            {op, source->value, place.value, *other.origin, *state.origin, otherAxes, axes});
    }
    if (!source || report)
      continue;
    // Copies: the map may not be touched below, but the lists are.
    AxisList axes = getState(source->value).sharding.dims[source->dim][source->leaf];
    std::optional<Location> origin = getState(source->value).origin;
    bool isBackward = source->value.getDefiningOp() == op;
    // The op works on partial sums over these axes: what its result makes of
    // them says nothing of its operands.
    if (isBackward && anyOverlap(contracted, axes))
      continue;
    for (const Place &place : group) {
      State &state = getState(place.value);
      AxisList &own = state.sharding.dims[place.dim][place.leaf];
      if (!own.empty() || (state.annotated && !state.open[place.dim]))
        continue;
      // A value that others read too is cut where it is wanted: that is free, to
      // gather it for them is not.
      if (place.value.getDefiningOp() != op && round == Interior && !place.value.hasOneUse())
        continue;
      // An axis shards one factor of a value: what came first stays.
      if (anyOverlap(state.sharding.getAxes(), axes))
        continue;
      own = axes;
      state.round = std::min(state.round, round);
      if (!state.origin)
        state.origin = origin;
      changed(place.value);
    }
  }
}

FailureOr<ShardingPropagation>
ShardingPropagation::run(func::FuncOp func, const FactorAnalysis &factors, MeshAttr mesh) {
  ShardingPropagation result;
  Block &block = func.getBody().front();
  auto addValue = [&](Value value, int round) -> LogicalResult {
    State state;
    ShardingAttr attr = getShardingAttr(value);
    if (attr) {
      auto sharding =
          readSharding(attr, value, factors, mesh, [&] { return emitError(value.getLoc()); });
      if (failed(sharding))
        return failure();
      state.sharding = std::move(*sharding);
      state.annotated = true;
      for (DimShardingAttr dim : attr.getDims())
        state.open.push_back(dim.getIsOpen());
      state.round = round;
      state.origin = value.getLoc();
    } else {
      state.sharding = ValueSharding::getReplicated(factors.getLeaves(value));
      state.round = NumRounds;
    }
    result.addState(value, std::move(state));
    return success();
  };
  for (BlockArgument arg : block.getArguments()) {
    bool isParameter = bool(func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kParameterAttr));
    if (failed(addValue(arg, isParameter ? Parameters : Inputs)))
      return failure();
  }
  for (Operation &op : block.without_terminator())
    for (Value value : op.getResults())
      if (failed(addValue(value, Interior)))
        return failure();

  // A round visits every op once in program order, then those around changed
  // values until none is left. Each visit only adds axes, so this ends.
  for (int round = 0; round < NumRounds; ++round) {
    llvm::SetVector<Operation *> worklist;
    auto changed = [&](Value value) {
      if (Operation *def = value.getDefiningOp())
        worklist.insert(def);
      for (Operation *user : value.getUsers())
        if (user != block.getTerminator())
          worklist.insert(user);
    };
    for (Operation &op : block.without_terminator())
      result.visit(&op, factors, round, /*report=*/false, changed);
    while (!worklist.empty())
      result.visit(worklist.pop_back_val(), factors, round, /*report=*/false, changed);
  }
  for (Operation &op : block.without_terminator())
    result.visit(&op, factors, NumRounds, /*report=*/true, [](Value) {});
  return result;
}

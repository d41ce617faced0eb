//===- ShardingPropagation.cpp - shardings to a fixed point ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/ShardingPropagation.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/lib/Weights/Weights.h"

#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {
enum Round { Parameters, Inputs, Interior, NumRounds };
} // namespace

/// The axes that shard the contracted factors of the op's operands.
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
          for (const AxisList &cls : getEntry(operand).sharding.dims[d])
            axes.append(cls.begin(), cls.end());
  return axes;
}

/// For each class that may be sharded, its occurrences in the op.
const ShardingPropagation::OpGroups &ShardingPropagation::getGroups(Operation *op,
                                                                    const FactorAnalysis &factors) {
  auto [it, inserted] = groups.try_emplace(op);
  OpGroups &result = it->second;
  if (!inserted)
    return result;
  // A crossing between stages does not propagate: each stage has a layout of its own.
  if (auto constrain = dyn_cast<ConstrainOp>(op); constrain && isCrossing(constrain))
    return result;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  SmallVector<int, 8> first;
  int count = 0;
  for (const auto &classes : opFactors.classes) {
    first.push_back(count);
    count += classes.size();
  }
  SmallVector<SmallVector<Occurrence, 3>, 8> all(count);
  size_t size = 0;
  auto add = [&](Value value, const FactorRule::ValueFactors &dims, bool isResult) {
    ValueEntry &entry = getEntry(value);
    for (auto [d, dim] : llvm::enumerate(dims)) {
      int cls = 0;
      int classes = entry.sharding.dims[d].size();
      for (int factor : dim)
        for (size_t j = 0; j < opFactors.classes[factor].size() && cls < classes; ++j, ++cls)
          if (opFactors.rule.factors[factor].kind != FactorKind::Special) {
            all[first[factor] + j].push_back({&entry, value, int(d), cls, isResult, nullptr});
            ++size;
          }
    }
  };
  for (auto [operand, dims] : llvm::zip(op->getOperands(), opFactors.rule.operands))
    add(operand, dims, /*isResult=*/false);
  for (auto [value, dims] : llvm::zip(op->getResults(), opFactors.rule.results))
    add(value, dims, /*isResult=*/true);
  result.occurrences.reserve(size);
  for (ArrayRef<Occurrence> group : all)
    if (group.size() > 1) {
      result.occurrences.insert(result.occurrences.end(), group.begin(), group.end());
      result.ends.push_back(result.occurrences.size());
    }
  return result;
}

/// Records the pairs of annotations that disagree about a class of the op.
void ShardingPropagation::reportConflicts(Operation *op, const FactorAnalysis &factors) {
  const OpGroups &opGroups = getGroups(op, factors);
  unsigned begin = 0;
  for (unsigned end : opGroups.ends) {
    const Occurrence *source = nullptr;
    for (const Occurrence &occurrence : Group(opGroups.occurrences).slice(begin, end - begin)) {
      const AxisList &axes = occurrence.getAxes();
      if (axes.empty())
        continue;
      if (!source) {
        source = &occurrence;
        continue;
      }
      if (axes != source->getAxes() && occurrence.entry->origin && source->entry->origin)
        conflicts.push_back({op, source->value, occurrence.value, *source->entry->origin,
                             *occurrence.entry->origin, source->getAxes(), axes});
    }
    begin = end;
  }
}

void ShardingPropagation::visit(Operation *op, const FactorAnalysis &factors, int round,
                                llvm::function_ref<void(const Occurrence &)> changed) {
  const OpGroups &opGroups = getGroups(op, factors);
  // The axes before this visit changes any. Computed on demand, as most visits change none.
  std::optional<AxisList> contracted;
  unsigned begin = 0;
  for (unsigned end : opGroups.ends) {
    Group group = Group(opGroups.occurrences).slice(begin, end - begin);
    begin = end;
    const Occurrence *source = llvm::find_if(group, [&](const Occurrence &occurrence) {
      return !occurrence.getAxes().empty() && occurrence.entry->round <= round;
    });
    if (source == group.end())
      continue;
    for (const Occurrence &occurrence : group) {
      ValueEntry &entry = *occurrence.entry;
      AxisList &own = occurrence.getAxes();
      if (!own.empty() || (entry.annotated && !entry.open[occurrence.dim]))
        continue;
      if (!contracted)
        contracted = isa<func::ReturnOp>(op) ? AxisList() : getContractedAxes(op, factors);
      const AxisList &axes = source->getAxes();
      // The op leaves a partial sum over these axes. The layout of its reduced result does
      // not determine the layouts of its operands.
      if (source->isResult && anyOverlap(*contracted, axes))
        break;
      // Do not shard a value that has other users. To slice it for this op is free; to
      // gather it for the others is not. But rows of some experts or tokens cannot be cut out of others.
      bool isRows = occurrence.dim < entry.tokens + (entry.tokens > 0);
      if (!occurrence.isResult && round == Interior && !occurrence.value.hasOneUse() && !isRows)
        continue;
      // Tokens of rows are those of other rows.
      if (round == Interior && isRows && occurrence.dim > 0 && source->entry->tokens == 0)
        continue;
      // An axis shards one factor of a value. The first one keeps it.
      AxisList free = getFreeAxes(entry, occurrence.dim, axes);
      if (free.empty() || anyOverlap(entry.sharding.getAxes(), free) || anyOverlap(entry.unreduced, free))
        continue;
      own = std::move(free);
      entry.round = std::min(entry.round, round);
      if (!entry.origin)
        entry.origin = source->entry->origin;
      changed(occurrence);
    }
  }
}

/// Finds the rows that ops connect.
void ShardingPropagation::connectRows(ArrayRef<func::FuncOp> functions) {
  llvm::IntEqClasses classes(entries.size());
  for (func::FuncOp func : functions)
    for (Operation &op : func.front()) {
      std::optional<unsigned> first;
      auto visit = [&](Value value) {
        auto it = entryIndices.find(value);
        if (it == entryIndices.end() || entries[it->second].tokens == 0)
          return;
        if (first)
          classes.join(*first, it->second);
        else
          first = it->second;
      };
      llvm::for_each(op.getOperands(), visit);
      llvm::for_each(op.getResults(), visit);
    }
  classes.compress();
  routings.resize(classes.getNumClasses());
  for (auto [i, entry] : llvm::enumerate(entries)) {
    entry.routing = classes[i];
    if (entry.tokens > 0)
      routings[entry.routing].push_back(&entry);
  }
}

/// The first axes of a list that may shard a dimension of a value: all of them, but of tokens of rows those
/// that shard neither experts nor features of the rows that ops connect.
AxisList ShardingPropagation::getFreeAxes(const ValueEntry &entry, int dim, ArrayRef<Axis> axes) const {
  if (dim == 0 || dim > entry.tokens)
    return AxisList(axes);
  for (const ValueEntry *rows : routings[entry.routing])
    for (auto [i, classes] : llvm::enumerate(rows->sharding.dims))
      if (i == 0 || int(i) > rows->tokens)
        for (const AxisList &taken : classes)
          axes = axes.take_while([&](const Axis &axis) { return !anyOverlap(taken, axis); });
  return AxisList(axes);
}

LogicalResult ShardingPropagation::addValue(Value value, ShardingAttr attr, int round,
                                            const FactorAnalysis &factors, MeshAttr mesh) {
  entryIndices.try_emplace(value, entries.size());
  ValueEntry &entry = entries.emplace_back();
  entry.tokens = nn::getNumTokenDims(value);
  if (!attr) {
    entry.sharding = ValueSharding::getReplicated(factors.getClasses(value));
    entry.round = NumRounds;
    return success();
  }
  auto sharding =
      readSharding(attr, value, factors, mesh, [&] { return emitError(value.getLoc()); });
  if (failed(sharding))
    return failure();
  entry.sharding = std::move(*sharding);
  entry.annotated = true;
  for (AxisRefAttr axis : attr.getUnreduced())
    entry.unreduced.push_back(getAxis(axis, mesh));
  for (DimShardingAttr dim : attr.getDims())
    entry.open.push_back(dim.getIsOpen());
  entry.round = round;
  entry.origin = value.getLoc();
  return success();
}

/// Adds one entry for each shared value, which is that of all its arguments.
LogicalResult ShardingPropagation::addShared(const FactorAnalysis &factors, MeshAttr mesh) {
  for (const SharedValue &value : factors.getSharedValues()) {
    auto stated = getStatedSharding(value);
    if (failed(stated))
      return failure();
    sharedIndices.push_back(entries.size());
    auto attr = *stated ? dyn_cast<ShardingAttr>((*stated)->attr) : ShardingAttr();
    if (failed(addValue(value.getFirst(), attr, Parameters, factors, mesh)))
      return failure();
    // The value that a function writes has a sharding of its own.
    if (value.arguments.empty() && entryIndices.lookup(value.getFirst()) == sharedIndices.back())
      entryIndices.erase(value.getFirst());
    if (*stated)
      entries.back().origin = (*stated)->place;
    for (BlockArgument argument : value.arguments) {
      entryIndices[argument] = sharedIndices.back();
      sharedValues[argument] = &value;
    }
  }
  return success();
}

/// Adds the groups of the returns that write states: a state and its new value have one
/// sharding.
void ShardingPropagation::addWrites(const FactorAnalysis &factors) {
  for (auto [value, index] : llvm::zip_equal(factors.getSharedValues(), sharedIndices))
    for (OpOperand *operand : value.written) {
      ValueEntry &from = getEntry(operand->get()), &to = entries[index];
      if (&from == &to)
        continue;
      OpGroups &group = groups[operand->getOwner()];
      for (size_t d = 0; d < to.sharding.dims.size(); ++d)
        for (size_t cls = 0; cls < to.sharding.dims[d].size(); ++cls) {
          group.occurrences.push_back(
              {&from, operand->get(), int(d), int(cls), /*isResult=*/false, nullptr});
          group.occurrences.push_back(
              {&to, value.getFirst(), int(d), int(cls), /*isResult=*/true, &value});
          group.ends.push_back(group.occurrences.size());
        }
    }
}

/// Calls `visit` with the ops to visit after the sharding of an occurrence's value changed: its
/// definer and its users, and for a shared value those of all its places.
void ShardingPropagation::visitNeighbours(const Occurrence &occurrence,
                                          llvm::function_ref<void(Operation *)> visit) const {
  // A return without groups writes no state, or one that keeps its value.
  auto visitUser = [&](Operation *user) {
    if (!isa<func::ReturnOp>(user) || groups.contains(user))
      visit(user);
  };
  auto visitValue = [&](Value value) {
    if (Operation *def = value.getDefiningOp())
      visit(def);
    llvm::for_each(value.getUsers(), visitUser);
  };
  const SharedValue *shared =
      occurrence.shared ? occurrence.shared : sharedValues.lookup(occurrence.value);
  if (!shared)
    return visitValue(occurrence.value);
  for (BlockArgument argument : shared->arguments)
    visitValue(argument);
  for (OpOperand *operand : shared->written)
    visitUser(operand->getOwner());
}

FailureOr<ShardingPropagation> ShardingPropagation::run(ArrayRef<func::FuncOp> functions,
                                                        const FactorAnalysis &factors,
                                                        MeshAttr mesh) {
  ShardingPropagation result;
  size_t numOps = 0, numValues = 0;
  for (func::FuncOp func : functions) {
    numOps += func.front().getOperations().size();
    numValues += func.front().getOperations().size() + func.getNumArguments();
  }
  result.entryIndices.reserve(numValues);
  result.groups.reserve(numOps);
  if (failed(result.addShared(factors, mesh)))
    return failure();
  for (func::FuncOp func : functions) {
    Block &block = func.front();
    for (BlockArgument arg : block.getArguments()) {
      if (result.sharedValues.contains(arg))
        continue;
      std::optional<Weight> weight = getWeight(arg);
      Round round = weight && !weight->isState ? Parameters : Inputs;
      if (failed(result.addValue(arg, getShardingAttr(arg), round, factors, mesh)))
        return failure();
    }
    for (Operation &op : block.without_terminator())
      for (Value value : op.getResults())
        if (failed(result.addValue(value, getShardingAttr(value), Interior, factors, mesh)))
          return failure();
  }
  result.addWrites(factors);
  result.connectRows(functions);
  result.propagate(functions, factors);
  return result;
}

/// A round visits every op once in program order. It then visits the definers and users of
/// changed values until no value changes.
void ShardingPropagation::propagate(ArrayRef<func::FuncOp> functions,
                                    const FactorAnalysis &factors) {
  auto forEach = [&](llvm::function_ref<void(Operation *)> visit) {
    for (func::FuncOp func : functions)
      for (Operation &op : func.front())
        if (!isa<func::ReturnOp>(op) || groups.contains(&op))
          visit(&op);
  };
  for (int round = 0; round < NumRounds; ++round) {
    llvm::SetVector<Operation *> worklist;
    auto changed = [&](const Occurrence &occurrence) {
      visitNeighbours(occurrence, [&](Operation *op) { worklist.insert(op); });
    };
    forEach([&](Operation *op) { visit(op, factors, round, changed); });
    while (!worklist.empty())
      visit(worklist.pop_back_val(), factors, round, changed);
  }
  forEach([&](Operation *op) { reportConflicts(op, factors); });
}

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
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {
enum Round { Parameters, Inputs, Interior, NumRounds };
} // namespace

//===----------------------------------------------------------------------===//
// Entries and groups
//===----------------------------------------------------------------------===//

/// The indices in `lists` of the axes of an entry's classes.
ArrayRef<unsigned> ShardingPropagation::getLists(unsigned entry) const {
  unsigned first = entries[entry].firstClass;
  unsigned behind = entry + 1 < entries.size() ? entries[entry + 1].firstClass : axes.size();
  return ArrayRef(axes).slice(first, behind - first);
}

/// The index in `lists` of a list of axes.
unsigned ShardingPropagation::getNumber(ArrayRef<Axis> list) {
  auto it = llvm::find(lists, list);
  unsigned index = it - lists.begin();
  if (it == lists.end())
    lists.emplace_back(list);
  return index;
}

ValueSharding ShardingPropagation::getSharding(unsigned entry) const {
  ValueSharding sharding = ValueSharding::getReplicated(entries[entry].classes);
  const unsigned *next = axes.data() + entries[entry].firstClass;
  for (ValueSharding::Dim &dim : sharding.dims)
    for (AxisList &list : dim)
      list = lists[*next++];
  return sharding;
}

ShardingPropagation::Group ShardingPropagation::getGroup(unsigned index) const {
  unsigned begin = index == 0 ? 0 : groupEnds[index - 1];
  return Group(occurrences).slice(begin, groupEnds[index] - begin);
}

/// The axes that shard the contracted factors of the op's operands.
AxisList ShardingPropagation::getContractedAxes(Operation *op,
                                                const FactorAnalysis &factors) const {
  AxisList contracted;
  const FactorRule &rule = factors.getFactors(op).rule;
  if (llvm::none_of(rule.factors,
                    [](const RuleFactor &f) { return f.kind == FactorKind::Contracted; }))
    return contracted;
  for (auto [operand, dims] : llvm::zip(op->getOperands(), rule.operands)) {
    ArrayRef<unsigned> rest = getLists(getIndex(operand));
    for (auto [classes, dim] : llvm::zip(entries[getIndex(operand)].classes, dims)) {
      for (int factor : dim)
        if (rule.factors[factor].kind == FactorKind::Contracted)
          for (unsigned list : rest.take_front(classes.size()))
            contracted.append(lists[list].begin(), lists[list].end());
      rest = rest.drop_front(classes.size());
    }
  }
  return contracted;
}

/// For each class that may be sharded, adds its occurrences in the op.
void ShardingPropagation::addGroups(Operation *op, const FactorAnalysis &factors) {
  OpGroups &own = groups[op];
  own.first = own.last = groupEnds.size();
  // A crossing between stages does not propagate: each stage has a layout of its own.
  if (auto constrain = dyn_cast<ConstrainOp>(op); constrain && isCrossing(constrain))
    return;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  SmallVector<int, 8> first;
  int count = 0;
  for (const auto &classes : opFactors.classes) {
    first.push_back(count);
    count += classes.size();
  }
  SmallVector<SmallVector<Occurrence, 3>, 8> all(count);
  auto add = [&](Value value, const FactorRule::ValueFactors &dims, bool isResult) {
    unsigned index = getIndex(value);
    unsigned begin = entries[index].firstClass;
    for (auto [d, dim] : llvm::enumerate(dims)) {
      unsigned end = begin + entries[index].classes[d].size(), cls = begin;
      for (int factor : dim)
        for (size_t j = 0; j < opFactors.classes[factor].size() && cls < end; ++j, ++cls)
          if (opFactors.rule.factors[factor].kind != FactorKind::Special)
            all[first[factor] + j].push_back({index, cls, value, short(d), isResult});
      begin = end;
    }
  };
  for (auto [operand, dims] : llvm::zip(op->getOperands(), opFactors.rule.operands))
    add(operand, dims, /*isResult=*/false);
  for (auto [value, dims] : llvm::zip(op->getResults(), opFactors.rule.results))
    add(value, dims, /*isResult=*/true);
  for (ArrayRef<Occurrence> group : all)
    if (group.size() > 1) {
      occurrences.insert(occurrences.end(), group.begin(), group.end());
      groupEnds.push_back(occurrences.size());
    }
  own.last = groupEnds.size();
}

/// Records the pairs of annotations that disagree about a class of the op.
void ShardingPropagation::reportConflicts(Operation *op, OpGroups opGroups) {
  for (unsigned i = opGroups.first; i < opGroups.last; ++i) {
    const Occurrence *source = nullptr;
    for (const Occurrence &occurrence : getGroup(i)) {
      unsigned list = axes[occurrence.cls];
      if (list == 0)
        continue;
      if (!source) {
        source = &occurrence;
        continue;
      }
      LocationAttr first = entries[source->entry].origin, second = entries[occurrence.entry].origin;
      if (list != axes[source->cls] && first && second)
        conflicts.push_back({op, source->value, occurrence.value, first, second, getAxes(*source), lists[list]});
    }
  }
}

//===----------------------------------------------------------------------===//
// Rounds
//===----------------------------------------------------------------------===//

void ShardingPropagation::visit(Operation *op, OpGroups opGroups, const FactorAnalysis &factors, int round,
                                llvm::function_ref<void(const Occurrence &)> changed) {
  // The axes before this visit changes any. Computed on demand, as most visits change none.
  std::optional<AxisList> contracted;
  for (unsigned i = opGroups.first; i < opGroups.last; ++i) {
    Group group = getGroup(i);
    const Occurrence *source = llvm::find_if(group, [&](const Occurrence &occurrence) {
      return axes[occurrence.cls] != 0 && entries[occurrence.entry].round <= round;
    });
    if (source == group.end())
      continue;
    for (const Occurrence &occurrence : group) {
      if (axes[occurrence.cls] != 0)
        continue;
      ValueEntry &entry = entries[occurrence.entry];
      if (entry.annotated && !entry.open[occurrence.dim])
        continue;
      if (!contracted)
        contracted = isa<func::ReturnOp>(op) ? AxisList() : getContractedAxes(op, factors);
      // The op leaves a partial sum over these axes. The layout of its reduced result does
      // not determine the layouts of its operands.
      if (source->isResult && anyOverlap(*contracted, getAxes(*source)))
        break;
      // Do not shard a value that has other users. To slice it for this op is free; to
      // gather it for the others is not. But rows of some experts or tokens cannot be cut out of others.
      bool isRows = occurrence.dim < entry.tokens + (entry.tokens > 0);
      if (!occurrence.isResult && round == Interior && !occurrence.value.hasOneUse() && !isRows)
        continue;
      // Tokens of rows are those of other rows.
      if (round == Interior && isRows && occurrence.dim > 0 && entries[source->entry].tokens == 0)
        continue;
      AxisList free = getFreeAxes(occurrence, getAxes(*source));
      if (free.empty())
        continue;
      axes[occurrence.cls] = getNumber(free);
      entry.round = std::min<int>(entry.round, round);
      if (!entry.origin)
        entry.origin = entries[source->entry].origin;
      changed(occurrence);
    }
  }
}

/// Finds the rows that ops connect.
void ShardingPropagation::connectRows(ArrayRef<func::FuncOp> functions) {
  auto isRows = [](const ValueEntry &entry) { return entry.tokens > 0; };
  if (llvm::none_of(entries, isRows))
    return;
  llvm::IntEqClasses classes(entries.size());
  for (func::FuncOp func : functions)
    for (Operation &op : func.front()) {
      std::optional<unsigned> first;
      auto visit = [&](Value value) {
        auto it = entryIndices.find(value);
        if (it == entryIndices.end() || !isRows(entries[it->second]))
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
    if (isRows(entry))
      routings[entry.routing].push_back(i);
  }
}

/// The first axes of a list that may shard an occurrence. An axis shards one factor of a value, and the first one keeps
/// it. Of tokens of rows, the axes shard neither experts nor features of the rows that ops connect.
AxisList ShardingPropagation::getFreeAxes(const Occurrence &occurrence, ArrayRef<Axis> axes) const {
  auto leave = [&](const AxisList &taken) {
    axes = axes.take_while([&](const Axis &axis) { return !anyOverlap(taken, axis); });
  };
  const ValueEntry &entry = entries[occurrence.entry];
  leave(lists[entry.unreduced]);
  for (unsigned list : getLists(occurrence.entry))
    leave(lists[list]);
  if (occurrence.dim == 0 || occurrence.dim > entry.tokens)
    return AxisList(axes);
  for (unsigned rows : routings[entry.routing]) {
    ValueSharding sharding = getSharding(rows);
    for (auto [i, classes] : llvm::enumerate(sharding.dims))
      if (i == 0 || int(i) > entries[rows].tokens)
        llvm::for_each(classes, leave);
  }
  return AxisList(axes);
}

LogicalResult ShardingPropagation::addValue(Value value, ShardingAttr attr, int round,
                                            const FactorAnalysis &factors, MeshAttr mesh) {
  entryIndices.try_emplace(value, entries.size());
  ValueEntry &entry = entries.emplace_back();
  entry.classes = factors.getClasses(value);
  entry.firstClass = axes.size();
  entry.tokens = nn::getNumTokenDims(value);
  if (!attr) {
    size_t count = 0;
    for (const FactorClasses &dim : entry.classes)
      count += dim.size();
    axes.resize(axes.size() + count);
    entry.round = NumRounds;
    return success();
  }
  auto sharding =
      readSharding(attr, value, factors, mesh, [&] { return emitError(value.getLoc()); });
  if (failed(sharding))
    return failure();
  for (const ValueSharding::Dim &dim : sharding->dims)
    for (const AxisList &list : dim)
      axes.push_back(getNumber(list));
  entry.annotated = true;
  AxisList unreduced;
  for (AxisRefAttr axis : attr.getUnreduced())
    unreduced.push_back(getAxis(axis, mesh));
  entry.unreduced = getNumber(unreduced);
  for (DimShardingAttr dim : attr.getDims())
    entry.open.push_back(dim.getIsOpen());
  entry.round = round;
  entry.origin = value.getLoc();
  return success();
}

/// Adds one entry for each shared value, which is that of all its arguments.
LogicalResult ShardingPropagation::addShared(const FactorAnalysis &factors, MeshAttr mesh) {
  shared = factors.getSharedValues();
  for (auto [i, value] : llvm::enumerate(shared)) {
    auto stated = getStatedSharding(value);
    if (failed(stated))
      return failure();
    auto attr = *stated ? dyn_cast<ShardingAttr>((*stated)->attr) : ShardingAttr();
    if (failed(addValue(value.getFirst(), attr, Parameters, factors, mesh)))
      return failure();
    // The value that a function writes has a sharding of its own.
    if (value.arguments.empty() && entryIndices.lookup(value.getFirst()) == i)
      entryIndices.erase(value.getFirst());
    if (*stated)
      entries.back().origin = (*stated)->place;
    for (BlockArgument argument : value.arguments)
      entryIndices[argument] = i;
  }
  return success();
}

/// Adds the groups of the returns that write states: a state and its new value have one
/// sharding.
void ShardingPropagation::addWrites() {
  llvm::MapVector<Operation *, SmallVector<std::pair<unsigned, OpOperand *>>> writes;
  for (auto [i, value] : llvm::enumerate(shared))
    for (OpOperand *operand : value.written)
      if (getIndex(operand->get()) != i)
        writes[operand->getOwner()].emplace_back(i, operand);
  for (auto &[op, states] : writes) {
    OpGroups &own = groups[op];
    own.first = groupEnds.size();
    for (auto [to, operand] : states) {
      unsigned from = getIndex(operand->get());
      unsigned offset = 0;
      for (auto [d, classes] : llvm::enumerate(entries[to].classes))
        for (size_t cls = 0; cls < classes.size(); ++cls, ++offset) {
          occurrences.push_back({from, entries[from].firstClass + offset, operand->get(), short(d), /*isResult=*/false});
          occurrences.push_back({to, entries[to].firstClass + offset, shared[to].getFirst(), short(d), /*isResult=*/true});
          groupEnds.push_back(occurrences.size());
        }
    }
    own.last = groupEnds.size();
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
  if (occurrence.entry >= shared.size())
    return visitValue(occurrence.value);
  for (BlockArgument argument : shared[occurrence.entry].arguments)
    visitValue(argument);
  for (OpOperand *operand : shared[occurrence.entry].written)
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
  result.entries.reserve(numValues);
  result.entryIndices.reserve(numValues);
  result.groups.reserve(numOps);
  if (failed(result.addShared(factors, mesh)))
    return failure();
  for (func::FuncOp func : functions) {
    Block &block = func.front();
    WeightFinder weights(func);
    for (BlockArgument arg : block.getArguments()) {
      if (auto it = result.entryIndices.find(arg);
          it != result.entryIndices.end() && it->second < result.shared.size())
        continue;
      std::optional<Weight> weight = weights.find(arg);
      Round round = weight && !weight->isState ? Parameters : Inputs;
      if (failed(result.addValue(arg, getShardingAttr(arg), round, factors, mesh)))
        return failure();
    }
    for (Operation &op : block.without_terminator())
      for (Value value : op.getResults())
        if (failed(result.addValue(value, getShardingAttr(value), Interior, factors, mesh)))
          return failure();
  }
  result.addWrites();
  result.connectRows(functions);
  result.propagate(functions, factors);
  return result;
}

/// A round visits every op once in program order. It then visits the definers and users of
/// changed values until no value changes.
void ShardingPropagation::propagate(ArrayRef<func::FuncOp> functions,
                                    const FactorAnalysis &factors) {
  std::vector<std::pair<Operation *, OpGroups>> order;
  for (func::FuncOp func : functions)
    for (Operation &op : func.front()) {
      bool isReturn = isa<func::ReturnOp>(op);
      if (!isReturn)
        addGroups(&op, factors);
      if (auto it = groups.find(&op); it != groups.end())
        order.emplace_back(&op, it->second);
    }
  for (int round = 0; round < NumRounds; ++round) {
    llvm::SetVector<Operation *> worklist;
    auto changed = [&](const Occurrence &occurrence) {
      visitNeighbours(occurrence, [&](Operation *op) { worklist.insert(op); });
    };
    for (auto [op, opGroups] : order)
      visit(op, opGroups, factors, round, changed);
    while (!worklist.empty()) {
      Operation *op = worklist.pop_back_val();
      visit(op, groups.find(op)->second, factors, round, changed);
    }
  }
  for (auto [op, opGroups] : order)
    reportConflicts(op, opGroups);
}

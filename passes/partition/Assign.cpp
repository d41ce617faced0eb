//===- Assign.cpp - the axes over which an op computes --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// 1. `assignInOrder` takes the axes of operands for contracted factors, then those of results
//    for parallel factors.
// 2. If an operand of a contraction has to move for that, `AssignmentSearch` prices the other
//    assignments, and takes a cheaper one.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

ValueSharding Partitioner::project(Value value, const FactorRule::ValueFactors &dims,
                                   const FactorAnalysis::OpFactors &opFactors,
                                   const Assignment &assignment) const {
  ValueSharding sharding = ValueSharding::getReplicated(factors.getClasses(value));
  for (auto [d, dim] : llvm::enumerate(dims)) {
    size_t cls = 0;
    for (int factor : dim)
      for (const AxisList &axes : assignment[factor])
        if (cls < sharding.dims[d].size())
          sharding.dims[d][cls++] = axes;
  }
  return sharding;
}

bool Partitioner::contracts(const FactorRule &rule) {
  return llvm::any_of(rule.factors,
                      [](const RuleFactor &f) { return f.kind == FactorKind::Contracted; });
}

ReductionKind Partitioner::getReduction(const FactorRule &rule, unsigned result) {
  bool isMax = llvm::any_of(rule.factors, [&](const RuleFactor &f) {
    return f.kind == FactorKind::Contracted && f.getReduction(result) == ReductionKind::Max;
  });
  return isMax ? ReductionKind::Max : ReductionKind::Sum;
}

/// The axes over which a result of the op is unreduced.
AxisList Partitioner::getContractedAxes(const FactorRule &rule, const Assignment &assignment,
                                        unsigned result) const {
  AxisList axes;
  for (auto [factor, classes] : llvm::enumerate(assignment))
    if (rule.isReducedIn(factor, result))
      for (const AxisList &cls : classes)
        axes.append(cls.begin(), cls.end());
  llvm::sort(axes);
  canonicalizeAxes(axes, mesh);
  return axes;
}

void meshwright::forEachClass(
    const FactorRule::ValueFactors &dims, const ValueSharding &sharding,
    const FactorAnalysis::OpFactors &opFactors,
    function_ref<void(int factor, size_t cls, const AxisList &axes)> visit) {
  for (auto [d, dim] : llvm::enumerate(dims)) {
    size_t next = 0;
    for (int factor : dim)
      for (size_t j = 0; j < opFactors.classes[factor].size(); ++j, ++next)
        if (next < sharding.dims[d].size())
          visit(factor, j, sharding.dims[d][next]);
  }
}

/// The first axes of a list, as far as they are those of another one.
static AxisList takeCommon(ArrayRef<Axis> axes, const std::optional<AxisList> &others) {
  size_t size = others ? std::min(axes.size(), others->size()) : axes.size();
  while (others && axes.take_front(size) != ArrayRef(*others).take_front(size))
    --size;
  return AxisList(axes.take_front(size));
}

/// The axes that shard a class of tokens of all routed rows of the op, which the op takes: rows of some tokens
/// cannot be taken out of others, or gathered. None for other classes.
std::optional<AxisList> Partitioner::getTokenAxes(Operation *op, int factor, size_t cls) const {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  std::optional<AxisList> common;
  auto visit = [&](Value value, const FactorRule::ValueFactors &dims) {
    int64_t tokens = nn::getNumTokenDims(value);
    for (int64_t dim = 1; dim <= tokens; ++dim) {
      size_t index = 0;
      for (int own : dims[dim])
        for (size_t j = 0; j < opFactors.classes[own].size(); ++j, ++index)
          if (own == factor && j == cls)
            common = takeCommon(getForm(value).target.dims[dim][index], common);
    }
  };
  for (auto [operand, dims] : llvm::zip(op->getOperands(), opFactors.rule.operands))
    visit(operand, dims);
  for (auto [result, dims] : llvm::zip(op->getResults(), opFactors.rule.results))
    visit(result, dims);
  return common;
}

bool Partitioner::mayShard(Operation *op, int factor, size_t cls) const {
  auto model = dyn_cast<LocalOpInterface>(op);
  return !model || model.mayShard(*this, factor, cls);
}

/// Chooses axes for each factor:
/// - A contracted factor takes the axes of the operands and leaves a partial sum.
/// - A parallel factor takes the axes of the results up to the first one that another factor
///   has taken.
/// - Other factors take none.
/// - Tokens of routed rows take the axes of these.
Assignment Partitioner::assignInOrder(Operation *op) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  const FactorRule &rule = opFactors.rule;
  Assignment assignment;
  for (const FactorClasses &classes : opFactors.classes)
    assignment.emplace_back(classes.size());
  AxisList used;
  auto take = [&](Value value, const FactorRule::ValueFactors &dims, FactorKind kind) {
    forEachClass(
        dims, getForm(value).target, opFactors, [&](int factor, size_t cls, const AxisList &axes) {
          AxisList &own = assignment[factor][cls];
          if (rule.factors[factor].kind != kind || !own.empty() || !mayShard(op, factor, cls))
            return;
          for (const Axis &axis : takeCommon(axes, getTokenAxes(op, factor, cls))) {
            if (anyOverlap(used, axis))
              break;
            own.push_back(axis);
          }
          used.append(own.begin(), own.end());
        });
  };
  // Weights come first, since their layouts cost more to change than those of activations.
  // The weight of an op that contracts is its last operand.
  for (int i = rule.operands.size() - 1; i >= 0; --i)
    take(op->getOperand(i), rule.operands[i], FactorKind::Contracted);
  for (auto [result, dims] : llvm::zip(op->getResults(), rule.results))
    take(result, dims, FactorKind::Parallel);
  return assignment;
}

//===----------------------------------------------------------------------===//
// Search
//===----------------------------------------------------------------------===//

/// Finds the assignment whose moves cost least: of the operands to the layouts that the op
/// reads, and of the results to the layouts that their users read.
/// - A factor takes the axes that an operand or a result gives it, or the first ones of them.
/// - A parameter moves no further than with the assignment to begin with.
/// - Ties go to the assignment to begin with, then to the one found first.
///
/// In most ops parameters and values that agree leave one assignment. The search then prices
/// nothing.
class Partitioner::AssignmentSearch {
public:
  AssignmentSearch(Partitioner &partitioner, Operation *op)
      : partitioner(partitioner), op(op), opFactors(partitioner.factors.getFactors(op)) {}

  Assignment run(Assignment first);

private:
  /// Assignments that are priced at most.
  static constexpr int kMaxPriced = 128;

  /// A class of a factor, and the axes that it may take.
  struct Occurrence {
    int factor;
    size_t cls;
    SmallVector<ArrayRef<Axis>, 3> choices;
    /// True if all values shard the class over the axes of the first assignment.
    bool isAgreed = true;
  };

  /// An operand that is a parameter.
  struct Parameter {
    unsigned operand;
    /// The sharding that the op reads with the first assignment. None if that is a cut of the
    /// sharding that the parameter has.
    std::optional<ValueSharding> moved;
  };

  void collectChoices();
  void addChoices(Value value, const FactorRule::ValueFactors &dims);
  void keepParameters();
  bool leavesChoice();
  void visit(size_t index);
  bool keepsParameters() const;
  bool isCut(unsigned i, const Assignment &assignment) const;
  bool isFree(unsigned i, const Assignment &assignment) const;
  std::optional<Cost> getOperandCost(unsigned i, const Assignment &assignment) const;
  std::optional<Cost> getCost(const Assignment &assignment) const;

  Partitioner &partitioner;
  Operation *op;
  const FactorAnalysis::OpFactors &opFactors;

  SmallVector<Occurrence, 6> occurrences;
  SmallVector<Parameter, 2> parameters;
  Assignment first, current, best;
  /// The cost of `best`. Not known before another assignment than the first one is found.
  std::optional<Cost> bestCost;
  AxisList used;
  int numPriced = 0;
};

/// The cost of the move of an operand to the layout in which the op reads it. None if there is
/// no such move.
std::optional<Cost>
Partitioner::AssignmentSearch::getOperandCost(unsigned i, const Assignment &assignment) const {
  Value value = op->getOperand(i);
  const LocalForm &form = partitioner.getForm(value);
  ValueSharding to =
      partitioner.project(value, opFactors.rule.operands[i], opFactors, assignment);
  // A generated value has every layout.
  Operation *def = value.getDefiningOp();
  if ((!form.isDeferred && form.local.sharding == to) || (def && def->getNumOperands() == 0))
    return Cost();
  for (const auto &[known, copy] : form.copies)
    if (known == to)
      return Cost();
  if (partitioner.changesOrder(value, form.local.sharding, to))
    return std::nullopt;
  auto plan = partitioner.resharder.plan(
      partitioner.getLayout(value, form.local),
      partitioner.getLayout(value, to), getElementTypeOrSelf(value.getType()), getNumRowDims(value));
  if (failed(plan))
    return std::nullopt;
  return (*plan)->cost;
}

std::optional<Cost> Partitioner::AssignmentSearch::getCost(const Assignment &assignment) const {
  Cost cost;
  for (unsigned i = 0, e = op->getNumOperands(); i < e; ++i) {
    std::optional<Cost> own = getOperandCost(i, assignment);
    if (!own)
      return std::nullopt;
    cost = cost + *own;
  }
  for (auto [i, value] : llvm::enumerate(op->getResults())) {
    ValueSharding natural =
        partitioner.project(value, opFactors.rule.results[i], opFactors, assignment);
    const ValueSharding &target = partitioner.getForm(value).target;
    if (partitioner.changesOrder(value, natural, target))
      return std::nullopt;
    Part sum;
    sum.axes = partitioner.getContractedAxes(opFactors.rule, assignment, i);
    sum.reduction = getReduction(opFactors.rule, i);
    const Part &demand = partitioner.getForm(value).unreduced;
    auto plan = partitioner.resharder.plan(
        partitioner.getLayout(value, natural, sum),
        partitioner.getLayout(value, target, demand.reduction == sum.reduction ? demand : Part()),
        getElementTypeOrSelf(value.getType()), getNumRowDims(value));
    if (failed(plan))
      return std::nullopt;
    cost = cost + (*plan)->cost;
  }
  return cost;
}

/// Returns true if `axes` are those of `from`, or more.
static bool isCutOf(ArrayRef<Axis> axes, ArrayRef<Axis> from) {
  return axes.take_front(from.size()) == from;
}

/// Returns true if the op reads each rank's chunk of an operand, or a piece of that chunk.
bool Partitioner::AssignmentSearch::isCut(unsigned i, const Assignment &assignment) const {
  const ValueSharding &from = partitioner.getForm(op->getOperand(i)).local.sharding;
  for (auto [dim, have] : llvm::zip_equal(opFactors.rule.operands[i], from.dims)) {
    size_t next = 0;
    for (int factor : dim)
      for (size_t cls = 0; cls < assignment[factor].size() && next < have.size(); ++cls)
        if (!isCutOf(assignment[factor][cls], have[next++]))
          return false;
    for (const AxisList &axes : llvm::drop_begin(have, next))
      if (!axes.empty())
        return false;
  }
  return true;
}

/// Returns true if the op reads the operand without communication.
bool Partitioner::AssignmentSearch::isFree(unsigned i, const Assignment &assignment) const {
  Value value = op->getOperand(i);
  const LocalForm &form = partitioner.getForm(value);
  Operation *def = value.getDefiningOp();
  if ((def && def->getNumOperands() == 0) || (!form.isDeferred && isCut(i, assignment)))
    return true;
  if (form.copies.empty())
    return false;
  ValueSharding to =
      partitioner.project(value, opFactors.rule.operands[i], opFactors, assignment);
  return llvm::any_of(form.copies, [&](const auto &copy) { return copy.first == to; });
}

/// Adds the axes of a value, and each beginning of them, to the choices of its classes.
void Partitioner::AssignmentSearch::addChoices(Value value, const FactorRule::ValueFactors &dims) {
  forEachClass(dims, partitioner.getForm(value).target, opFactors,
              [&](int factor, size_t cls, const AxisList &axes) {
                FactorKind kind = opFactors.rule.factors[factor].kind;
                if ((kind != FactorKind::Parallel && kind != FactorKind::Contracted) ||
                    !partitioner.mayShard(op, factor, cls) || partitioner.getTokenAxes(op, factor, cls))
                  return;
                auto occurrence = llvm::find_if(occurrences, [&](const Occurrence &known) {
                  return known.factor == factor && known.cls == cls;
                });
                if (occurrence == occurrences.end()) {
                  occurrences.push_back({factor, cls, {first[factor][cls]}});
                  occurrence = std::prev(occurrences.end());
                }
                occurrence->isAgreed &= axes == first[factor][cls];
                for (size_t length = axes.size() + 1; length-- > 0;) {
                  ArrayRef<Axis> prefix = ArrayRef(axes).take_front(length);
                  if (!llvm::is_contained(occurrence->choices, prefix))
                    occurrence->choices.push_back(prefix);
                }
              });
}

/// Lists the choices of each class. Classes of parameters come first, then those of results, so
/// that the axes of these decide early.
void Partitioner::AssignmentSearch::collectChoices() {
  const FactorRule &rule = opFactors.rule;
  for (const Parameter &parameter : parameters)
    addChoices(op->getOperand(parameter.operand), rule.operands[parameter.operand]);
  for (auto [value, dims] : llvm::zip_equal(op->getResults(), rule.results))
    addChoices(value, dims);
  for (auto [value, dims] : llvm::zip_equal(op->getOperands(), rule.operands))
    addChoices(value, dims);
  keepParameters();
}

/// Removes choices that would move a parameter which the first assignment does not move.
void Partitioner::AssignmentSearch::keepParameters() {
  for (const Parameter &parameter : parameters) {
    if (parameter.moved)
      continue;
    Value value = op->getOperand(parameter.operand);
    forEachClass(
        opFactors.rule.operands[parameter.operand], partitioner.getForm(value).local.sharding,
        opFactors, [&](int factor, size_t cls, const AxisList &axes) {
          for (Occurrence &occurrence : occurrences)
            if (occurrence.factor == factor && occurrence.cls == cls)
              llvm::erase_if(occurrence.choices, [&, from = ArrayRef(axes)](ArrayRef<Axis> choice) {
                return !isCutOf(choice, from);
              });
        });
  }
}

/// Removes choices that no cheaper assignment has. Returns true if another assignment than the
/// first one remains.
/// - A class with one choice takes its axes from all others.
/// - A class that all values shard alike keeps its axes, unless another class may take them: to
///   drop them would move every value further.
bool Partitioner::AssignmentSearch::leavesChoice() {
  auto isContested = [&](const Occurrence &occurrence, ArrayRef<Axis> axes) {
    return llvm::any_of(occurrences, [&](const Occurrence &other) {
      return &other != &occurrence && llvm::any_of(other.choices, [&](ArrayRef<Axis> choice) {
        return anyOverlap(choice, axes);
      });
    });
  };
  bool changed = true;
  while (changed) {
    changed = false;
    for (Occurrence &occurrence : occurrences) {
      ArrayRef<Axis> own = occurrence.choices.front();
      if (occurrence.choices.size() > 1) {
        if (!occurrence.isAgreed || isContested(occurrence, own))
          continue;
        occurrence.choices.truncate(1);
        changed = true;
      }
      if (own.empty())
        continue;
      for (Occurrence &other : occurrences) {
        size_t before = other.choices.size();
        if (&other != &occurrence)
          llvm::erase_if(other.choices,
                         [&](ArrayRef<Axis> choice) { return anyOverlap(choice, own); });
        changed |= other.choices.size() != before;
      }
    }
  }
  return llvm::any_of(occurrences,
                      [](const Occurrence &occurrence) { return occurrence.choices.size() > 1; });
}

/// Returns true if each parameter stays where it is, may be cut further, or is read as with the
/// first assignment.
bool Partitioner::AssignmentSearch::keepsParameters() const {
  return llvm::all_of(parameters, [&](const Parameter &parameter) {
    if (isCut(parameter.operand, current))
      return true;
    Value value = op->getOperand(parameter.operand);
    return parameter.moved &&
           partitioner.project(value, opFactors.rule.operands[parameter.operand], opFactors,
                               current) == *parameter.moved;
  });
}

void Partitioner::AssignmentSearch::visit(size_t index) {
  if (index == occurrences.size()) {
    if (numPriced == kMaxPriced || current == first || !keepsParameters())
      return;
    if (numPriced++ == 0)
      bestCost = getCost(first);
    std::optional<Cost> cost = bestCost ? getCost(current) : std::nullopt;
    if (cost && *cost < *bestCost) {
      bestCost = cost;
      best = current;
    }
    return;
  }
  const Occurrence &own = occurrences[index];
  for (ArrayRef<Axis> axes : own.choices) {
    if (anyOverlap(used, axes))
      continue;
    size_t before = used.size();
    used.append(axes.begin(), axes.end());
    current[own.factor][own.cls].assign(axes.begin(), axes.end());
    visit(index + 1);
    used.truncate(before);
    current[own.factor][own.cls].clear();
  }
}

Assignment Partitioner::AssignmentSearch::run(Assignment given) {
  first = std::move(given);
  bool moves = false;
  for (unsigned i = 0, e = op->getNumOperands(); i < e; ++i)
    moves |= !isFree(i, first);
  if (!moves)
    return first;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!getWeight(operand))
      continue;
    parameters.push_back({unsigned(i), std::nullopt});
    if (!isCut(i, first))
      parameters.back().moved =
          partitioner.project(operand, opFactors.rule.operands[i], opFactors, first);
  }
  collectChoices();
  if (!leavesChoice())
    return first;
  best = first;
  for (const FactorClasses &classes : opFactors.classes)
    current.emplace_back(classes.size());
  visit(0);
  return best;
}

Assignment Partitioner::assign(Operation *op) {
  Assignment first = assignInOrder(op);
  if (!contracts(factors.getFactors(op).rule))
    return first;
  return AssignmentSearch(*this, op).run(std::move(first));
}

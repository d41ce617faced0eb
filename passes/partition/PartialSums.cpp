//===- PartialSums.cpp - values that are reduced later --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A partial sum whose only use adds it to other values is not reduced where it is
// computed. Partial sums are added to each other first, and share one reduction.
// A use that asks for an unreduced value takes the partial sum itself.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

static int64_t countOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

bool meshwright::passesPartial(Operation *op, unsigned operand) {
  auto model = dyn_cast<LocalOpInterface>(op);
  if (model && model.reducesParts())
    return false;
  if (op->hasTrait<Reindexes>())
    return operand == 0 && !isa<ConstrainOp>(op) &&
           countOf(op->getOperand(0)) == countOf(op->getResult(0));
  return model && model.passesPart(operand);
}

std::optional<ReductionKind> meshwright::getJoinedParts(Operation *op) {
  auto model = dyn_cast<LocalOpInterface>(op);
  return model ? model.getJoinedParts() : std::nullopt;
}

bool meshwright::joinsPartials(Operation *op, const FactorRule &rule) {
  return getJoinedParts(op) == ReductionKind::Sum ||
         (rule.jointlyLinear && op->hasTrait<MovesOnly>());
}

Part Partitioner::getDemand(OpOperand &use) const {
  if (auto constrain = dyn_cast<ConstrainOp>(use.getOwner()))
    return isCrossing(constrain) ? Part() : getForm(constrain.getResult()).unreduced;
  if (isa<func::ReturnOp>(use.getOwner()))
    return resultTargets[use.getOperandNumber()].unreduced;
  return {};
}

bool Partitioner::isReadOpen(Value value) const {
  for (OpOperand &use : value.getUses())
    if (Part demand = getDemand(use);
        !demand.empty() && demand.reduction == ReductionKind::Sum)
      return true;
  if (!value.hasOneUse())
    return false;
  OpOperand &use = *value.use_begin();
  Operation *user = use.getOwner();
  return user->getNumResults() == 1 &&
         (passesPartial(user, use.getOperandNumber()) ||
          joinsPartials(user, factors.getFactors(user).rule)) &&
         isReadOpen(user->getResult(0));
}

bool Partitioner::canWait(Value value, ReductionKind reduction) const {
  // A use that reads the value unreduced takes it before its reduction.
  if (!value.hasOneUse())
    return llvm::any_of(value.getUses(), [&](OpOperand &use) {
      Part demand = getDemand(use);
      return !demand.empty() && demand.reduction == reduction;
    });
  Operation *user = *value.getUsers().begin();
  // A constraint and the return get their layout from the partial sum in one step.
  if (auto constrain = dyn_cast<ConstrainOp>(user))
    return !isCrossing(constrain);
  if (isa<func::ReturnOp>(user))
    return true;
  if (auto model = dyn_cast<LocalOpInterface>(user); model && model.reducesParts())
    return reduction == ReductionKind::Sum;
  // A running maximum stays unreduced if a user of its new value asks for that.
  std::optional<ReductionKind> joined = getJoinedParts(user);
  if (reduction == ReductionKind::Max && joined == ReductionKind::Max &&
      user->getResult(0).getType() == value.getType())
    return llvm::any_of(user->getResult(0).getUses(), [&](OpOperand &use) {
      Part demand = getDemand(use);
      return !demand.empty() && demand.reduction == reduction;
    });
  // Only movements keep a maximum.
  if (reduction == ReductionKind::Max && !user->hasTrait<Reindexes>())
    return false;
  if (joined == ReductionKind::Sum)
    return user->getResult(0).getType() == value.getType() || user->getNumOperands() == 2;
  if (joinsPartials(user, factors.getFactors(user).rule))
    return isReadOpen(user->getResult(0)) || canWait(user->getResult(0), reduction);
  auto model = dyn_cast<LocalOpInterface>(user);
  return passesPartial(user, value.getUses().begin()->getOperandNumber()) &&
         ((model && model.passesAtOnce()) || canWait(user->getResult(0), reduction));
}

/// The form of a value that one use reads, unreduced over some axes. It comes from the partial
/// form of the value, if there is one, so that only the other axes are reduced.
FailureOr<Value> Partitioner::useUnreduced(Value value, const ValueSharding &sharding,
                                           Location loc, const Part &unreduced) {
  LocalForm &form = getForm(value);
  Operation *op = value.getDefiningOp();
  if (op && op->getNumOperands() == 0) {
    auto made = generate(op, sharding);
    if (failed(made))
      return failure();
    return reshard(value, {*made, sharding, {}}, sharding, loc, unreduced);
  }
  bool isSum = unreduced.reduction == ReductionKind::Sum;
  if (!form.isDeferred || (!form.rest.empty() && !isSum)) {
    if (form.isDeferred && failed(materialize(value)))
      return failure();
    bool hasPart = form.partial && form.partial->unreduced.reduction == unreduced.reduction;
    return reshard(value, hasPart ? *form.partial : form.local, sharding, loc, unreduced);
  }
  auto sum = reshard(value, form.local, sharding, value.getLoc(), unreduced);
  if (failed(sum))
    return failure();
  Value total = *sum;
  for (Value other : SmallVector<Value, 2>(form.rest)) {
    auto term = useUnreduced(other, projectBroadcast(other, value, sharding), loc, unreduced);
    if (failed(term))
      return failure();
    total = nn::AddOp::create(builder, value.getLoc(), total.getType(), total, *term);
  }
  return total;
}

FailureOr<Partitioner::Local> Partitioner::usePart(Value value, const ValueSharding &sharding,
                                                   Location loc) {
  LocalForm &form = getForm(value);
  if (form.isDeferred && form.rest.empty() && value.hasOneUse() &&
      form.local.unreduced.reduction == ReductionKind::Sum &&
      !anyOverlap(sharding.getAxes(), form.local.unreduced.axes)) {
    Local part = form.local;
    auto moved = reshard(value, part, sharding, loc, part.unreduced);
    if (failed(moved))
      return failure();
    return Local{*moved, sharding, part.unreduced};
  }
  auto whole = use(value, sharding, loc);
  if (failed(whole))
    return failure();
  return Local{*whole, sharding, {}};
}

/// Turns a partial sum over some of `axes` into one over all of them. The new part is zero on
/// all ranks but the first along the other axes. This moves no data, and lets two sums share
/// a reduction.
void Partitioner::widenPartial(Local &local, ArrayRef<Axis> axes, Location loc) {
  auto missing = subtract(axes, local.unreduced.axes);
  if (!missing || missing->empty() || anyOverlap(local.sharding.getAxes(), *missing))
    return;
  local.value =
      PartialOp::create(builder, loc, TypeRange{local.value.getType()}, ValueRange{local.value},
                        getAxesAttr(builder.getContext(), *missing, mesh))
          ->getResult(0);
  local.unreduced.axes.assign(axes.begin(), axes.end());
}

/// Handles an op that moves several partial sums at once, as a concatenation does, if its result is
/// read unreduced or reduced later: then the sums share a reduction, which may scatter. Returns
/// false if it is another op, or an operand is no partial sum.
FailureOr<bool> Partitioner::moveParts(Operation *op) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  if (getJoinedParts(op) || !joinsPartials(op, opFactors.rule) ||
      !(isReadOpen(op->getResult(0)) || canWait(op->getResult(0), ReductionKind::Sum)))
    return false;
  SmallVector<Local, 0> parts;
  Part sum;
  for (Value operand : op->getOperands()) {
    const LocalForm &form = getForm(operand);
    if (!form.isDeferred || !form.rest.empty() || !operand.hasOneUse() ||
        form.local.unreduced.reduction != ReductionKind::Sum)
      return false;
    parts.push_back(form.local);
    for (const Axis &axis : form.local.unreduced.axes)
      if (!anyOverlap(sum.axes, {axis}))
        sum.axes.push_back(axis);
  }
  llvm::sort(sum.axes);
  canonicalizeAxes(sum.axes, mesh);
  Value result = op->getResult(0);
  Assignment assignment = assign(op);
  ValueSharding sharding = project(result, opFactors.rule.results[0], opFactors, assignment);
  if (anyOverlap(sharding.getAxes(), sum.axes))
    return false;
  SmallVector<Value> operands;
  for (auto [i, part] : llvm::enumerate(parts)) {
    Value operand = op->getOperand(i);
    widenPartial(part, sum.axes, op->getLoc());
    auto moved = reshard(operand, part,
                         project(operand, opFactors.rule.operands[i], opFactors, assignment),
                         op->getLoc(), sum);
    if (failed(moved))
      return failure();
    operands.push_back(*moved);
  }
  Value local = emit(op, operands, getLocalType(result, sharding))->getResult(0);
  if (failed(define(result, {local, sharding, std::move(sum)})))
    return failure();
  return true;
}

void Partitioner::keepStated(Operation *op) {
  if (llvm::any_of(op->getOperands(), [&](Value v) { return statedParts.contains(v); }))
    statedParts.insert(op->getResult(0));
}

bool Partitioner::mayOverflow(Operation *op, unsigned operand) const {
  auto model = dyn_cast<LocalOpInterface>(op);
  return model && statedParts.contains(op->getOperand(operand)) && model.mayOverflow(operand);
}

/// Applies a cheap linear op to a partial sum before its reduction. Returns false if it does
/// not apply.
FailureOr<bool> Partitioner::passPartialThrough(Operation *op) {
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  int which = -1;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    const LocalForm &form = getForm(operand);
    if (form.isDeferred && form.rest.empty() && operand.hasOneUse() && passesPartial(op, i) &&
        !mayOverflow(op, i))
      which = i;
  }
  if (which < 0 || !canWait(op->getOperand(which),
                            getForm(op->getOperand(which)).local.unreduced.reduction))
    return false;
  // The op computes in the layout of its operand.
  Local from = getForm(op->getOperand(which)).local;
  Assignment assignment;
  for (const FactorClasses &classes : opFactors.classes)
    assignment.emplace_back(classes.size());
  for (auto [d, dim] : llvm::enumerate(opFactors.rule.operands[which])) {
    size_t cls = 0;
    for (int factor : dim)
      for (size_t j = 0; j < assignment[factor].size(); ++j) {
        const AxisList &axes = from.sharding.dims[d][cls++];
        // A reshape that cuts other chunks reads the dimension whole.
        if (!axes.empty() && opFactors.rule.factors[factor].kind != FactorKind::Parallel)
          return false;
        assignment[factor][j] = axes;
      }
  }
  SmallVector<Value, 2> operands;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (int(i) == which) {
      operands.push_back(from.value);
      continue;
    }
    auto value = use(operand, project(operand, opFactors.rule.operands[i], opFactors, assignment),
                     op->getLoc());
    if (failed(value))
      return failure();
    operands.push_back(*value);
  }
  Value result = op->getResult(0);
  ValueSharding sharding = project(result, opFactors.rule.results[0], opFactors, assignment);
  Operation *local = emit(op, operands, getLocalType(result, sharding));
  stateSplit(result, local, sharding);
  if (failed(define(result, {local->getResult(0), sharding, from.unreduced})))
    return failure();
  return true;
}

FailureOr<bool> Partitioner::passPartials(Operation *op) {
  if (auto model = dyn_cast<LocalOpInterface>(op))
    if (auto joined = model.joinParts(*this); failed(joined) || *joined)
      return joined;
  if (auto moved = moveParts(op); failed(moved) || *moved)
    return moved;
  return passPartialThrough(op);
}

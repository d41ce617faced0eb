//===- Repetition.cpp - copies of a segment's ops -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/recompute/Repetition.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Weights/Weights.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;

namespace {

class Planner {
public:
  Planner(const ForwardPass &pass, Segment segment, bool cheap)
      : pass(pass), segment(segment), cheap(cheap) {}
  std::optional<Repetition> plan(const CostModel &model);

private:
  bool isKept(Value value) const { return pass.isReadFrom(value, segment.end); }
  bool canRepeat(Operation *op) const;
  void addOps(ArrayRef<Value> values);
  bool findPosition();

  const ForwardPass &pass;
  Segment segment;
  bool cheap;
  llvm::SetVector<Operation *> ops;
  /// Values of the segment that are kept for the copies and the backward pass.
  llvm::SmallDenseSet<Value> kept;
  Repetition made;
};

} // namespace

/// Returns true for a lookup in a table that is gathered: to gather it again costs more than to keep the
/// rows that are found.
static bool looksUpFetched(const ForwardPass &pass, Operation *op) {
  auto lookup = dyn_cast<dist::LookupOpInterface>(op);
  return lookup && pass.isFetched(lookup.getTable());
}

/// Returns true for an op that chooses indices by numbers, as those of experts by scores. If a copy had other bits
/// in a tie, it would choose otherwise than the forward pass did. The indices are few bytes.
static bool chooses(Operation *op) {
  int64_t read = 0, chosen = 0;
  for (Value operand : op->getOperands())
    if (isa<FloatType>(getElementTypeOrSelf(operand.getType())))
      read += getTensorBytes(operand.getType());
  for (Value result : op->getResults()) {
    Type element = getElementTypeOrSelf(result.getType());
    if (!element.isInteger() || element.getIntOrFloatBitWidth() < 32)
      return false;
    chosen += getTensorBytes(result.getType());
  }
  return chosen < read;
}

bool Planner::canRepeat(Operation *op) const {
  return op && pass.isIn(op, segment) && isMemoryEffectFree(op) && op->getNumRegions() == 0 &&
         llvm::all_of(op->getResults(), [&](Value v) { return pass.takesMemory(v); }) &&
         !(cheap && (op->hasTrait<dist::Product>() || dist::communicates(op))) &&
         !looksUpFetched(pass, op) && !chooses(op);
}

/// Adds the ops that make the values from kept ones.
void Planner::addOps(ArrayRef<Value> values) {
  SmallVector<Value> open(values);
  while (!open.empty()) {
    Value value = open.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (!op || !pass.isIn(op, segment) || !pass.takesMemory(value) || isKept(value))
      continue;
    if (!canRepeat(op))
      kept.insert(skipViews(value));
    else if (ops.insert(op))
      open.append(op->operand_begin(), op->operand_end());
  }
}

namespace {

/// The ops that depend on the readers of the copies, found in the order of the program as far as asked.
class Dependents {
public:
  /// `ops` begin with the first reader.
  Dependents(ArrayRef<Operation *> ops, ProgramSet<Operation *> readers)
      : ops(ops), found(std::move(readers)) {}

  /// `number` counts from the first reader.
  bool contains(int64_t number) {
    for (; next <= number; ++next) {
      auto depends = [&](Value v) { return found.contains(v.getDefiningOp()); };
      if (llvm::any_of(ops[next]->getOperands(), depends))
        found.insert(ops[next]);
    }
    return found.contains(ops[number]);
  }

private:
  ArrayRef<Operation *> ops;
  ProgramSet<Operation *> found;
  int64_t next = 0;
};

} // namespace

/// Finds the first op that reads a copy, and the last value before it from behind the segment
/// that meets the copies in the backward pass. Returns false if there is no such value. That value is
/// near, most often, so the search goes back from the first reader.
bool Planner::findPosition() {
  ProgramSet<Operation *> readers;
  for (Value value : made.values)
    for (Operation *user : value.getUsers())
      if (pass.isBackward(user)) {
        readers.insert(user);
        if (!made.first || user->isBeforeInBlock(made.first))
          made.first = user;
      }
  int64_t first = pass.getNumber(made.first);
  ArrayRef<Operation *> behind = pass.getOps().drop_front(first).drop_back();
  Dependents dependents(behind, std::move(readers));
  for (int64_t number = first; number-- > pass.getNumber(pass.getFirstBackward());) {
    Operation *producer = pass.getOps()[number];
    if (!pass.isBackward(producer) || pass.getReach(producer) < segment.end)
      continue;
    SmallVector<int64_t> users;
    for (Operation *user : producer->getUsers())
      // An update reads gradients of all segments.
      if (int64_t own = pass.getNumber(user) - first;
          own >= 0 && own < int64_t(behind.size()) && user->hasAttr(nn::NnDialect::kBackwardAttr))
        users.push_back(own);
    llvm::sort(users);
    for (int64_t own : users) {
      if (!dependents.contains(own))
        continue;
      made.earlier = *llvm::find_if(behind[own]->getOperands(), [&](Value operand) {
        return operand.getDefiningOp() == producer;
      });
      return true;
    }
  }
  return false;
}

std::optional<Repetition> Planner::plan(const CostModel &model) {
  llvm::SmallDenseSet<Value> before;
  SmallVector<Value> needed;
  for (Operation *op : pass.getOps(segment))
    for (Value result : op->getResults()) {
      if (!pass.takesMemory(result) || isKept(result) || !pass.hasBackwardReader(result))
        continue;
      needed.push_back(result);
      before.insert(skipViews(result));
    }
  addOps(needed);
  for (Value value : needed)
    if (ops.contains(value.getDefiningOp()))
      made.values.push_back(value);
  for (Value value : before)
    made.bytes += getTensorBytes(value.getType());
  for (Value value : kept)
    made.bytes -= getTensorBytes(value.getType());
  if (made.bytes <= 0 || made.values.empty() || !findPosition())
    return std::nullopt;
  made.ops = ops.takeVector();
  llvm::sort(made.ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : made.ops)
    if (std::optional<Cost> cost = model.getCost(op))
      made.time += cost->time;
    else if (!op->hasTrait<dist::View>())
      made.time += getComputeTime(op, model);
  return std::move(made);
}

std::optional<Repetition> meshwright::planRepetition(const ForwardPass &pass, Segment segment,
                                                     bool cheap, const CostModel &model) {
  return Planner(pass, segment, cheap).plan(model);
}

/// The operand of an op through which it waits: no weight if there is another, since weights are
/// packed, and none that its readers compute.
static OpOperand *chooseOperand(const ForwardPass &pass, Operation *op) {
  OpOperand *parameter = nullptr;
  for (OpOperand &operand : op->getOpOperands()) {
    auto argument = dyn_cast<BlockArgument>(skipViews(operand.get()));
    if (!argument && !pass.takesMemory(operand.get()))
      continue;
    if (!argument || !getWeight(argument))
      return &operand;
    if (!parameter)
      parameter = &operand;
  }
  return parameter;
}

/// Returns true if no backward op before `end` reads results of the op. A collective may run at any
/// later time, so what it sends is left, too, and its results are not waited for.
static bool isLeft(const ForwardPass &pass, Operation *op, Operation *end) {
  return op->hasAttr(nn::NnDialect::kBackwardAttr) && !dist::communicates(op) &&
         !op->use_empty() && llvm::all_of(op->getUsers(), [&](Operation *user) {
           return pass.getNumber(user) >= pass.getNumber(end) || dist::communicates(user);
         });
}

void meshwright::repeat(const ForwardPass &pass, const Repetition &repetition, Operation *begin) {
  OpBuilder builder(repetition.first);
  Value earlier = repetition.earlier;
  for (int64_t i = pass.getNumber(begin), e = pass.getNumber(repetition.first); i < e; ++i)
    if (Operation *op = pass.getOps()[i]; isLeft(pass, op, repetition.first))
      for (Value left : op->getResults())
        if (left != earlier)
          earlier = dist::AfterOp::create(builder, op->getLoc(), earlier, left);
  IRMapping copies;
  ProgramMap<Value, Value> late;
  for (Operation *op : repetition.ops) {
    bool waits = llvm::any_of(op->getOperands(), [&](Value v) { return copies.contains(v); });
    OpOperand *operand = waits ? nullptr : chooseOperand(pass, op);
    Value after;
    if (operand) {
      Value &known = late[operand->get()];
      if (!known)
        known = dist::AfterOp::create(builder, op->getLoc(), operand->get(), earlier);
      after = known;
    }
    Operation *copy = builder.clone(*op, copies);
    // A square stays the product of one value with itself.
    if (operand)
      for (OpOperand &same : op->getOpOperands())
        if (same.get() == operand->get())
          copy->setOperand(same.getOperandNumber(), after);
    // The id names one value.
    copy->removeAttr(nn::NnDialect::kIdAttr);
  }
  for (Value value : repetition.values)
    value.replaceUsesWithIf(copies.lookup(value),
                            [&](OpOperand &use) { return pass.isBackward(use.getOwner()); });
}

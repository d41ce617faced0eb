//===- OrderUpdates.cpp - old values are read first -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/Passes.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_ORDERUPDATESPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Adds the ops at which launches end that read a buffer: a collective ends at its wait.
static void addReaders(Value value, llvm::SmallSetVector<Operation *, 4> &readers) {
  for (Operation *user : value.getUsers())
    if (rt::isView(user))
      addReaders(user->getResult(0), readers);
    else if (auto start = dyn_cast<rt::StartOp>(user))
      readers.insert(start.getFuture().getUsers().begin(), start.getFuture().getUsers().end());
    else
      readers.insert(user);
}

/// Returns true if an op needs another one that stands before it.
static bool needs(Operation *op, Operation *other) {
  llvm::SmallDenseSet<Operation *> seen;
  SmallVector<Operation *> worklist{op};
  while (!worklist.empty()) {
    Operation *next = worklist.pop_back_val();
    if (next == other)
      return true;
    for (Value operand : next->getOperands())
      if (Operation *producer = operand.getDefiningOp();
          producer && !producer->isBeforeInBlock(other) && seen.insert(producer).second)
        worklist.push_back(producer);
  }
  return false;
}

/// Moves an op before another one, and all that it needs.
static void moveBefore(Operation *op, Operation *other) {
  if (op->isBeforeInBlock(other))
    return;
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      moveBefore(producer, other);
  moveOpBefore(op, other);
}

static void order(rt::KernelOp kernel, Value old) {
  llvm::SmallSetVector<Operation *, 4> readers;
  addReaders(old, readers);
  readers.remove(kernel);
  Operation *last = kernel;
  for (Operation *reader : readers)
    if (last->isBeforeInBlock(reader))
      last = reader;
  // The function's result is the old value.
  if (last == kernel || last->hasTrait<OpTrait::IsTerminator>())
    return;
  bool canWait = llvm::all_of(kernel->getUsers(),
                              [&](Operation *user) { return last->isBeforeInBlock(user); });
  if (canWait) {
    moveOpAfter(kernel, last);
    return;
  }
  for (Operation *reader : readers)
    if (isa<rt::KernelOp>(reader) && !needs(reader, kernel))
      moveBefore(reader, kernel);
}

namespace {

/// Moves kernels of updates to where their last operand is there and the old values have been read, so
/// that their operands are free then: otherwise all gradients stay to the end of a step.
class Hoisting {
public:
  explicit Hoisting(Block &block) : block(block) {
    for (auto [i, op] : llvm::enumerate(block))
      positions[&op] = i;
  }

  /// Hoists a kernel that replaces these values.
  void add(rt::KernelOp kernel, ArrayRef<Value> old);
  /// Moves all kernels.
  void apply();

private:
  Operation *findLastProducer(Operation *op);
  void place(Operation *op);

  Block &block;
  ProgramMap<Operation *, unsigned> positions;
  /// The last producers of small ops, which many updates share.
  ProgramMap<Operation *, Operation *> lastProducers;
  /// The kernels behind each op.
  ProgramMap<Operation *, SmallVector<Operation *, 1>> hoisted;
  ProgramSet<Operation *> placed;
};

} // namespace

/// Returns true if an op computes single elements, such as the rate of an optimizer.
static bool isSmall(Operation *op) {
  return (isa<rt::KernelOp>(op) || rt::isView(op) || op->hasTrait<OpTrait::ConstantLike>()) &&
         llvm::all_of(op->getResultTypes(), [](Type type) {
           return cast<RankedTensorType>(type).getNumElements() == 1;
         });
}

/// The last op that has to stand before `op`: small producers may move with it. Null for none.
Operation *Hoisting::findLastProducer(Operation *op) {
  Operation *last = nullptr;
  for (Value operand : op->getOperands()) {
    Operation *producer = operand.getDefiningOp();
    if (producer && isSmall(producer)) {
      auto known = lastProducers.find(producer);
      if (known == lastProducers.end()) {
        Operation *found = findLastProducer(producer);
        known = lastProducers.try_emplace(producer, found).first;
      }
      producer = known->second;
    }
    if (producer && (!last || positions[last] < positions[producer]))
      last = producer;
  }
  return last;
}

void Hoisting::add(rt::KernelOp kernel, ArrayRef<Value> old) {
  Operation *last = findLastProducer(kernel);
  for (Value value : old) {
    llvm::SmallSetVector<Operation *, 4> readers;
    addReaders(value, readers);
    readers.remove(kernel);
    for (Operation *reader : readers)
      if (!last || positions[last] < positions[reader])
        last = reader;
  }
  if (last && positions[last] + 1 < positions[kernel])
    hoisted[last].push_back(kernel);
}

/// Puts an op at the end, and the producers of its operands before it.
void Hoisting::place(Operation *op) {
  if (!placed.insert(op).second)
    return;
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      place(producer);
  op->moveBefore(block.getTerminator());
}

void Hoisting::apply() {
  if (hoisted.empty())
    return;
  SmallVector<Operation *, 0> ops;
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  for (Operation *op : ops) {
    place(op);
    for (Operation *kernel : hoisted.lookup(op))
      place(kernel);
  }
}

namespace {

struct OrderUpdatesPass : meshwright::impl::OrderUpdatesPassBase<OrderUpdatesPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal() || !func.getBody().hasOneBlock())
      return;
    llvm::MapVector<rt::KernelOp, SmallVector<Value, 4>> old;
    for (const StateUpdate &update : findStateUpdates(func))
      if (update.old) {
        order(update.getKernel(0), update.old);
        if (update.values.size() == 1)
          old[update.getKernel(0)].push_back(update.old);
      }
    Hoisting hoisting(func.front());
    for (auto &[kernel, values] : old)
      if (values.size() == kernel->getNumResults())
        hoisting.add(kernel, values);
    hoisting.apply();
  }
};

} // namespace

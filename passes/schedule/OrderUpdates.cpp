//===- OrderUpdates.cpp - old values are read first -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Launches/StateUpdates.h"
#include "meshwright/passes/schedule/Passes.h"

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
  op->moveBefore(other);
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
    kernel->moveAfter(last);
    return;
  }
  for (Operation *reader : readers)
    if (isa<rt::KernelOp>(reader) && !needs(reader, kernel))
      moveBefore(reader, kernel);
}

namespace {

struct OrderUpdatesPass : meshwright::impl::OrderUpdatesPassBase<OrderUpdatesPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal() || !func.getBody().hasOneBlock())
      return;
    for (const StateUpdate &update : findStateUpdates(func))
      if (update.old)
        order(update.getKernel(0), update.old);
  }
};

} // namespace

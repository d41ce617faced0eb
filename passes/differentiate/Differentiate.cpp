//===- Differentiate.cpp - gradients to ops -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnDerivatives.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/passes/differentiate/Differentiator.h"
#include "meshwright/passes/differentiate/Passes.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_DIFFERENTIATEGRADIENTSPASS
#include "meshwright/passes/differentiate/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Erases ops that only stop gradients. One that a policy gave a sharding stays. Returns true if
/// there are some.
static bool eraseStops(func::FuncOp func) {
  bool changed = false;
  func.walk([&](nn::StopGradientOp op) {
    if (op->hasAttr(dist::DistDialect::kShardingAttr))
      return;
    op.getResult().replaceAllUsesWith(op.getInput());
    op.erase();
    changed = true;
  });
  return changed;
}

/// Replaces a value with a stated derivative by the value. The sharding of the op stays.
static void replaceByValue(nn::WithDerivativeOp op) {
  OpBuilder builder(op);
  Value value = op.getValue();
  if (value.getType() != op.getType())
    value = nn::Writer(builder, op.getLoc()).broadcast(value, op.getType().getShape());
  dist::ShardingAttr sharding = getShardingAttr(op.getResult());
  if (sharding && getShardingAttr(value) != sharding)
    value = dist::ConstrainOp::create(builder, op.getLoc(), value, sharding);
  op.getResult().replaceAllUsesWith(value);
  op.erase();
}

/// Moves ops that only the backward pass reads into it: behind the forward pass, and before the
/// first reader. So they keep no value of their own from one pass to the other. Erases ops that
/// nothing reads. An op of `ops` comes before its operands.
static void moveToBackward(ArrayRef<Operation *> ops) {
  auto isBackward = [](Operation *user) {
    return user->hasAttr(nn::NnDialect::kBackwardAttr);
  };
  for (Operation *op : ops) {
    if (isOpTriviallyDead(op)) {
      op->erase();
      continue;
    }
    if (!isPure(op) || isBackward(op) || !llvm::all_of(op->getUsers(), isBackward))
      continue;
    Operation *first = *op->user_begin();
    for (Operation *user : op->getUsers())
      if (user->isBeforeInBlock(first))
        first = user;
    op->moveBefore(first);
    if (op->getNumOperands() > 0)
      op->setAttr(nn::NnDialect::kBackwardAttr, UnitAttr::get(op->getContext()));
  }
}

/// Replaces values with stated derivatives by the values. Returns true if there are some.
static bool eraseDerivatives(func::FuncOp func) {
  llvm::SetVector<Operation *> stated;
  SmallVector<nn::WithDerivativeOp> wrappers;
  func.walk([&](nn::WithDerivativeOp op) {
    wrappers.push_back(op);
    stated.insert(op.getLike().getDefiningOp());
  });
  stated.remove(nullptr);
  // The ops from which the derivatives are computed, those of the forward pass among them.
  for (size_t i = 0; i < stated.size(); ++i)
    for (Value operand : stated[i]->getOperands())
      if (Operation *op = operand.getDefiningOp())
        stated.insert(op);
  for (nn::WithDerivativeOp op : wrappers)
    stated.remove(op);
  for (nn::WithDerivativeOp op : wrappers)
    replaceByValue(op);
  SmallVector<Operation *> ops;
  llvm::copy_if(stated, std::back_inserter(ops),
                [&](Operation *op) { return op->getBlock() == &func.front(); });
  llvm::sort(ops, [](Operation *a, Operation *b) { return b->isBeforeInBlock(a); });
  moveToBackward(ops);
  return !wrappers.empty();
}

namespace {
struct DifferentiateGradientsPass
    : meshwright::impl::DifferentiateGradientsPassBase<DifferentiateGradientsPass> {
  void runOnOperation() override {
    bool changed = false;
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      llvm::MapVector<Value, SmallVector<nn::GradientOp>> byLoss;
      func.walk([&](nn::GradientOp op) { byLoss[op.getLoss()].push_back(op); });
      changed |= !byLoss.empty();
      if (!byLoss.empty() && !func.getBody().hasOneBlock()) {
        func.emitOpError() << "expected one block, got " << func.getBody().getBlocks().size();
        return signalPassFailure();
      }
      for (auto &[loss, gradients] : byLoss)
        if (failed(Differentiator(func, gradients).run()))
          return signalPassFailure();
      // The products have their readers in the backward pass by now.
      changed |= eraseStops(func);
      changed |= eraseDerivatives(func);
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

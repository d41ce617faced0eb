//===- RandomSteps.cpp - random numbers of steps --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/train/RandomSteps.h"

using namespace mlir;
using namespace meshwright;
using nn::Writer;

/// The states from which a program draws its random numbers.
constexpr StringLiteral kSeedState = "random.seed", kStepState = "random.step";

void meshwright::dropNothing(func::FuncOp func) {
  SmallVector<nn::DropoutOpInterface> ops;
  func.walk([&](nn::DropoutOpInterface op) { ops.push_back(op); });
  for (nn::DropoutOpInterface op : ops)
    op.removeDropout();
  for (auto read : llvm::make_early_inc_range(func.getOps<nn::ReadOp>()))
    if (read->use_empty())
      read.erase();
}

void meshwright::setSeed(ModuleOp module, int64_t seed) {
  if (auto state = module.lookupSymbol<nn::StateOp>(kSeedState))
    state.setFillAttr(IntegerAttr::get(IntegerType::get(module.getContext(), 64), seed));
}

void meshwright::countSteps(func::FuncOp step, States &states) {
  auto state = step->getParentOfType<ModuleOp>().lookupSymbol<nn::StateOp>(kStepState);
  if (!state)
    return;
  OpBuilder builder(step.front().getTerminator());
  Writer w(builder, step.getLoc());
  Value number = states.read(w, kStepState, state.getType());
  states.write(w, kStepState, w.addNumber(number, 1));
}

void meshwright::renumberSteps(func::FuncOp func, States &states,
                               llvm::function_ref<Value(Writer &, Value)> number) {
  SmallVector<nn::ReadOp> reads;
  for (auto read : func.getOps<nn::ReadOp>())
    if (read.getState() == kStepState)
      reads.push_back(read);
  if (reads.empty())
    return;
  OpBuilder builder = OpBuilder::atBlockBegin(&func.front());
  Writer w(builder, func.getLoc());
  Value step = states.read(w, kStepState, reads.front().getType());
  Value own = number(w, step);
  for (nn::ReadOp read : reads) {
    read.getResult().replaceAllUsesWith(own);
    read.erase();
  }
}

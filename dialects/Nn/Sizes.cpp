//===- Sizes.cpp - sizes that come when a program runs --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Sizes.h"

#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;

BlockArgument nn::findSize(func::FuncOp func, StringAttr name) {
  for (unsigned i = 0, e = func.getNumArguments(); i < e; ++i)
    if (func.getArgAttr(i, nn::NnDialect::kSizeAttr) == name)
      return func.getArgument(i);
  return {};
}

FailureOr<BlockArgument> nn::getSize(func::FuncOp func, StringAttr name, Location loc) {
  if (BlockArgument size = findSize(func, name))
    return size;
  return LogicalResult(emitError(loc)
                       << "expected an argument with nn.size = " << name
                       << ", the run-time size of a dimension of " << func.getSymName());
}

bool nn::isAtMostSize(Value numbers, StringAttr name, function_ref<Value(Value)> getSource) {
  Value source = getSource(numbers);
  if (auto argument = dyn_cast<BlockArgument>(source)) {
    auto func = dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
    return func && func.getArgAttr(argument.getArgNumber(), NnDialect::kSizeAttr) == name;
  }
  Operation *op = source.getDefiningOp();
  if (isa_and_nonnull<MinimumOp>(op))
    return isAtMostSize(op->getOperand(0), name, getSource) ||
           isAtMostSize(op->getOperand(1), name, getSource);
  return op && op->hasTrait<dist::Reindexes>() && isAtMostSize(op->getOperand(0), name, getSource);
}

//===- Work.cpp - arithmetic of ops ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Work.h"

#include "meshwright/dialects/Dist/Forms.h"

#include "mlir/IR/BuiltinTypes.h"

using namespace mlir;

int64_t meshwright::dist::countElements(Operation *op) {
  auto countOf = [](Value value) {
    return getStoredElements(cast<RankedTensorType>(value.getType()));
  };
  int64_t most = countOf(op->getResult(0));
  for (Value operand : op->getOperands())
    most = std::max(most, countOf(operand));
  return most;
}

//===- FactorRule.cpp - how dimensions of an op are tied ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/FactorRule.h"

#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

FactorRule::ValueFactors FactorRule::addFactors(ArrayRef<int64_t> shape, FactorKind kind) {
  ValueFactors dims;
  for (int64_t size : shape)
    dims.push_back({addFactor(size, kind)});
  return dims;
}

FactorRule::ValueFactors dist::broadcastFactors(ArrayRef<int64_t> shape, ArrayRef<int64_t> target,
                                                ArrayRef<FactorRule::DimFactors> dims) {
  FactorRule::ValueFactors result;
  size_t missing = target.size() - shape.size();
  for (auto [i, size] : llvm::enumerate(shape))
    result.push_back(size == target[missing + i] ? dims[missing + i] : FactorRule::DimFactors());
  return result;
}

FactorRule dist::getElementwiseRule(Operation *op) {
  FactorRule rule;
  ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  FactorRule::ValueFactors dims = rule.addFactors(shape);
  for (Value operand : op->getOperands())
    rule.operands.push_back(broadcastFactors(shapeOf(operand), shape, dims));
  rule.results.push_back(std::move(dims));
  return rule;
}

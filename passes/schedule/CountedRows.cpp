//===- CountedRows.cpp - values of which some rows exist ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/CountedRows.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

CountedRows::CountedRows(func::FuncOp func) {
  for (Operation &op : func.getBody().front().without_terminator())
    visit(&op);
}

Value CountedRows::getOffsets(ValueRange values) const {
  Value first = values.empty() ? Value() : getOffsets(values.front());
  return llvm::all_of(values, [&](Value value) { return getOffsets(value) == first; }) ? first : Value();
}

/// Returns true if each row of a result is computed of that row of an operand: their first dimensions are one
/// factor of the op's rule.
static bool keepsRows(const FactorRule &rule, unsigned operand, unsigned result) {
  const FactorRule::ValueFactors &from = rule.operands[operand], &to = rule.results[result];
  return !from.empty() && !to.empty() && !from.front().empty() && from.front() == to.front();
}

void CountedRows::visit(Operation *op) {
  if (auto counted = dyn_cast<nn::CountedRowsOpInterface>(op)) {
    if (Value found = counted.givesRows() ? counted.getOffsetsOfRows() : Value())
      offsets[op->getResult(0)] = found;
    return;
  }
  SmallVector<std::pair<unsigned, Value>> read;
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (Value found = getOffsets(operand))
      read.push_back({i, found});
  if (read.empty() || isa<nn::RoutedOpInterface>(op))
    return;
  if (auto collective = dyn_cast<CollectiveOpInterface>(op)) {
    for (auto [i, found] : read)
      if (i < op->getNumResults() && !collective.getShardings(i) && collective.getLostDim(i) != 0 &&
          collective.getGainedDim(i) != 0)
        offsets[op->getResult(i)] = found;
    return;
  }
  auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
  if (!ruled)
    return;
  FactorRule rule = ruled.getFactorRule();
  for (auto [r, result] : llvm::enumerate(op->getResults())) {
    SmallVector<Value> found;
    for (auto [i, own] : read)
      if (keepsRows(rule, i, r))
        found.push_back(own);
    if (!found.empty() && llvm::all_equal(found))
      offsets[result] = found.front();
  }
}

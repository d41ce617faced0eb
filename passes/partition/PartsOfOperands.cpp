//===- PartsOfOperands.cpp - which part of an operand a local op reads ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Adds the operand that states the first row of a table whose rows are sharded. Returns false if
/// they are not.
bool Partitioner::addTableOffset(Operation *op, const Assignment &assignment, ArrayRef<Type> types,
                                 SmallVectorImpl<Value> &operands) {
  auto lookup = dyn_cast<LookupOpInterface>(op);
  if (!lookup || !lookup.takesOffset())
    return false;
  const FactorRule &rule = factors.getFactors(op).rule;
  std::optional<unsigned> table = lookup.getTableOperand();
  int64_t dim = lookup.getTableDim();
  AxisList axes;
  for (int factor : table ? rule.operands[*table][dim] : rule.results[0][dim])
    for (const AxisList &leaf : assignment[factor])
      axes.append(leaf.begin(), leaf.end());
  if (axes.empty())
    return false;
  Type local = table ? operands[*table].getType() : types[0];
  operands.push_back(AxisIndexOp::create(
      builder, op->getLoc(), RankedTensorType::get({}, builder.getI64Type()),
      getAxesAttr(builder.getContext(), axes, mesh),
      builder.getI64IntegerAttr(cast<RankedTensorType>(local).getDimSize(dim))));
  return true;
}

/// Lets a local op say that it has all keys only if no axis shards them.
void Partitioner::keepWholeKeys(Operation *op, Operation *local, const Assignment &assignment) {
  auto scores = dyn_cast<nn::ScoresOpInterface>(op);
  if (!scores || !op->hasAttr(nn::NnDialect::kWholeKeysAttr))
    return;
  const FactorRule &rule = factors.getFactors(op).rule;
  auto key = llvm::find(op->getOperands(), scores.getKey()) - op->operand_begin();
  for (int factor : rule.operands[key][2])
    if (llvm::any_of(assignment[factor], [](const AxisList &axes) { return !axes.empty(); }))
      local->removeAttr(nn::NnDialect::kWholeKeysAttr);
}

//===- SelectionModels.cpp - selections that are summed -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Splat.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Zeroes the padding of the condition of a selection between a value and zero, which is then
/// summed over. The result has zero padding if its condition has. The condition has fewer
/// bytes than the value, and the selection stays part of a larger kernel.
static LogicalResult maskCondition(nn::SelectOp select, Partitioner &partitioner,
                                   const Assignment &assignment, MutableArrayRef<Value> operands) {
  auto reduce = select->hasOneUse() ? dyn_cast<nn::ReduceOp>(*select->user_begin()) : nullptr;
  if (!reduce || reduce.getKind() != nn::ReduceKind::Sum ||
      padding::getSplat(select.getRhs()) != 0.0)
    return success();
  const FactorAnalysis::OpFactors &opFactors = partitioner.getFactors().getFactors(select);
  const FactorRule::ValueFactors &condition = opFactors.rule.operands[0];
  int64_t missing = select.getType().getRank() - int64_t(condition.size());
  for (int64_t dim : reduce.getDims()) {
    if (dim < missing)
      continue;
    bool isPadded = false;
    for (int factor : condition[dim - missing])
      for (auto [cls, axes] : llvm::zip_equal(opFactors.classes[factor], assignment[factor]))
        isPadded |= partitioner.isPadded(cls, axes);
    if (!isPadded)
      continue;
    const Layout *layout = partitioner.derive(operands[0]);
    if (!layout)
      return failure();
    operands[0] = partitioner.mask(operands[0], *layout, dim - missing, select.getLoc());
  }
  return success();
}

namespace {
struct SelectModel : LocalOpInterface::ExternalModel<SelectModel, nn::SelectOp> {
  LogicalResult maskOperands(Operation *op, Partitioner &partitioner, const Assignment &assignment,
                             MutableArrayRef<Value> operands) const {
    return maskCondition(cast<nn::SelectOp>(op), partitioner, assignment, operands);
  }
};
} // namespace

void local_models::attachSelectionModels(MLIRContext *context) {
  nn::SelectOp::attachInterface<SelectModel>(*context);
}

//===- InPlace.cpp - results over operands --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Launches/InPlace.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;

/// Returns true if each element of the results is computed from single elements. A rotation
/// reads two elements for each.
static bool isElementByElement(Operation *op) {
  if (op->hasTrait<dist::Elementwise>() || op->hasTrait<dist::Generates>() || op->hasTrait<dist::Reindexes>())
    return true;
  auto interface = dyn_cast<dist::ShardingRuleOpInterface>(op);
  return interface &&
         llvm::all_of(interface.getFactorRule().factors, [](const dist::RuleFactor &factor) {
           return factor.kind == dist::FactorKind::Parallel;
         });
}

/// The results that depend on an operand.
static ResultRange getDependents(Operation *op, unsigned operand) {
  // The merged log-sum-exp does not depend on the attention values.
  auto merge = dyn_cast<nn::MergeAttentionOp>(op);
  bool isAttention = merge && (op->getOperand(operand) == merge.getFirst() ||
                               op->getOperand(operand) == merge.getSecond());
  return isAttention ? op->getResults().take_front(1) : op->getResults();
}

/// Returns true if one result depends on the operand, and each of its elements only on the
/// element at the same offset in memory.
static bool isAtSameOffset(Operation *op, unsigned operand) {
  if (op->hasTrait<dist::View>())
    return true;
  auto interface = dyn_cast<dist::ShardingRuleOpInterface>(op);
  if (!interface || getDependents(op, operand).size() != 1 || op->hasTrait<dist::TakesPart>() ||
      cast<RankedTensorType>(op->getOperand(operand).getType()).getShape() !=
          cast<RankedTensorType>(op->getResult(0).getType()).getShape())
    return false;
  // Equal shapes have the same factors. Rules take time to make.
  if (op->hasTrait<dist::Elementwise>())
    return true;
  dist::FactorRule rule = interface.getFactorRule();
  auto shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
  for (size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1 && rule.operands[operand][d] != rule.results[0][d])
      return false;
  return true;
}

/// Returns true if one loop over the elements computes all results. Its kernel reads all operands at
/// an element before it writes there.
static bool isOneLoop(rt::KernelOp kernel) {
  return llvm::all_of(kernel.getOps(),
                      [](Operation &op) {
                        return op.hasTrait<dist::Elementwise>() ||
                               op.hasTrait<OpTrait::ConstantLike>() ||
                               op.hasTrait<OpTrait::IsTerminator>();
                      }) &&
         llvm::all_of(kernel.getYielded(), [&](Value value) {
           return shapeOf(value) == shapeOf(kernel.getYielded().front());
         });
}

bool meshwright::canWriteInPlace(rt::KernelOp kernel, unsigned operand, unsigned result) {
  // Threads read the number of rows while others write.
  if (kernel.getCountedBy() == operand)
    return false;
  if (rt::getBufferBytes(kernel.getOperand(operand)) !=
      rt::getBufferBytes(Value(kernel.getResult(result))))
    return false;
  for (Operation &op : kernel.getOps())
    if (!isElementByElement(&op))
      return false;
  // Values that depend on the operand. Each has its elements at the same offsets.
  llvm::SmallDenseSet<Value> dependent{kernel.getBlock().getArgument(operand)};
  for (Operation &op : kernel.getOps())
    for (OpOperand &use : op.getOpOperands())
      if (dependent.contains(use.get())) {
        if (!isAtSameOffset(&op, use.getOperandNumber()))
          return false;
        for (Value value : getDependents(&op, use.getOperandNumber()))
          dependent.insert(value);
      }
  for (auto [i, value] : llvm::enumerate(kernel.getYielded()))
    if (i != result && dependent.contains(value))
      return isOneLoop(kernel);
  return true;
}

//===- Uses.cpp - values, and what depends on them ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Uses.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::test;

bool test::isFloats(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && isa<FloatType>(type.getElementType());
}

bool test::reads(OpOperand &operand) {
  return operand.getOperandNumber() == 0 || !isa<dist::AfterOp>(operand.getOwner());
}

llvm::DenseSet<Value> test::getReadValues(func::FuncOp func) {
  llvm::DenseSet<Value> read;
  for (Operation &op : llvm::reverse(func.getBody().front())) {
    bool isRead = op.hasTrait<OpTrait::IsTerminator>() || !isMemoryEffectFree(&op) ||
                  llvm::any_of(op.getResults(), [&](Value result) { return read.contains(result); });
    for (OpOperand &operand : op.getOpOperands())
      if (isRead && reads(operand))
        read.insert(operand.get());
  }
  return read;
}

void test::rewire(Value value, llvm::function_ref<Value(OpBuilder &)> make) {
  OpBuilder builder(value.getContext());
  builder.setInsertionPointAfterValue(value);
  SmallVector<OpOperand *> uses;
  for (OpOperand &use : value.getUses())
    uses.push_back(&use);
  Value changed = make(builder);
  for (OpOperand *use : uses)
    use->set(changed);
}

bool test::isSummed(Value value, int64_t dim) {
  return llvm::all_of(value.getUsers(), [&](Operation *user) {
    if (auto reduce = dyn_cast<nn::ReduceOp>(user))
      return llvm::is_contained(reduce.getDims(), dim);
    auto isAlike = [&](Value operand) { return operand == value || matchPattern(operand, m_Constant()); };
    return user->hasTrait<dist::Elementwise>() && user->getNumResults() == 1 &&
           shapeOf(user->getResult(0)) == shapeOf(value) && llvm::all_of(user->getOperands(), isAlike) &&
           isSummed(user->getResult(0), dim);
  });
}

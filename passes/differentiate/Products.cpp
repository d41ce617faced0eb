//===- Products.cpp - derivatives of matrix products ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of the backward pass have the type of those of the forward pass. A product of
// parameters, whose cotangent is wider, has that type instead.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

static LogicalResult differentiateLinear(LinearOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  Type type = elementOf(dy);
  bool inOut = op.getInOut();
  if (vjp.wants(0))
    vjp.add(0, w.linear(dy, w.cast(op.getWeight(), type), !inOut));
  if (vjp.wants(1)) {
    Value x = w.cast(op.getInput(), type);
    vjp.add(1, inOut ? w.weightGrad(x, dy) : w.weightGrad(dy, x));
  }
  if (op.getBias())
    vjp.add(2, dy);
  return success();
}

/// Returns true if all dimensions of a factor before the last two stretch.
static bool isShared(Value factor) {
  return llvm::all_of(shapeOf(factor).drop_back(2), [](int64_t size) { return size == 1; });
}

/// A factor that all products of the batch share, and that is not transposed, has a gradient that
/// is summed over the batch at once.
static Value getSharedGrad(Writer &w, Value factor, Value x, Value y) {
  return w.reshape(w.weightGrad(x, y), shapeOf(factor));
}

static LogicalResult differentiateMatmul(MatmulOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  Type type = elementOf(dy);
  Value lhs = w.cast(op.getLhs(), type), rhs = w.cast(op.getRhs(), type);
  bool turnsLhs = op.getTransposeLhs(), turnsRhs = op.getTransposeRhs();
  if (vjp.wants(0))
    vjp.add(0, turnsLhs ? w.matmul(rhs, dy, turnsRhs, /*transposeY=*/true)
                        : w.matmul(dy, rhs, /*transposeX=*/false, !turnsRhs));
  if (!vjp.wants(1))
    return success();
  bool fits = shapeOf(lhs).drop_back(2) == shapeOf(dy).drop_back(2);
  if (!turnsLhs && fits && isShared(rhs))
    vjp.add(1, turnsRhs ? getSharedGrad(w, rhs, dy, lhs) : getSharedGrad(w, rhs, lhs, dy));
  else
    vjp.add(1, turnsRhs ? w.matmul(dy, lhs, /*transposeX=*/true, turnsLhs)
                        : w.matmul(lhs, dy, !turnsLhs, /*transposeY=*/false));
  return success();
}

static LogicalResult differentiateWeightGrad(WeightGradOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Type type = elementOf(op.getLhs());
  Value dy = w.cast(vjp.getCotangent(), type);
  if (vjp.wants(0))
    vjp.add(0, w.linear(op.getRhs(), dy, /*inOut=*/false));
  if (vjp.wants(1))
    vjp.add(1, w.linear(op.getLhs(), dy, /*inOut=*/true));
  return success();
}

void meshwright::attachProductModels(MLIRContext *context) {
  attachVjp<LinearOp, differentiateLinear>(context);
  attachVjp<MatmulOp, differentiateMatmul>(context);
  attachVjp<WeightGradOp, differentiateWeightGrad>(context);
}

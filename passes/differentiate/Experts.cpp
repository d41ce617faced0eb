//===- Experts.cpp - derivatives of mixtures of experts -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Choices are constant. nn.dispatch and nn.combine are each other's transposes.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

static LogicalResult refuseOffset(Operation *op) {
  return op->emitOpError("cannot be differentiated with an offset, as in a local program");
}

static LogicalResult differentiateDispatch(DispatchOp op, Vjp &vjp) {
  if (op.getOffset())
    return refuseOffset(op);
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  vjp.add(0, CombineOp::create(w.getBuilder(), w.getLoc(), op.getInput().getType().clone(elementOf(dy)),
                               dy, op.getIndices(), Value(), op.getEach()));
  return success();
}

static LogicalResult differentiateCombine(CombineOp op, Vjp &vjp) {
  if (op.getOffset())
    return refuseOffset(op);
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  vjp.add(0, DispatchOp::create(w.getBuilder(), w.getLoc(), op.getRows().getType().clone(elementOf(dy)),
                                dy, op.getIndices(), Value(), op.getEach()));
  return success();
}

static Value multiply(Writer &w, Value rows, Value weight, bool inOut) {
  RankedTensorType type = typeOf(rows);
  SmallVector<int64_t> shape(type.getShape());
  shape.back() = shapeOf(weight)[inOut ? 2 : 1];
  return GroupedLinearOp::create(w.getBuilder(), w.getLoc(), type.clone(shape), rows, weight, inOut);
}

static Value sumProducts(Writer &w, Value lhs, Value rhs) {
  ArrayRef<int64_t> shape = shapeOf(lhs);
  auto type = RankedTensorType::get({shape.front(), shape.back(), shapeOf(rhs).back()},
                                    getComputeType(elementOf(lhs)));
  return GroupedWeightGradOp::create(w.getBuilder(), w.getLoc(), type, lhs, rhs);
}

static LogicalResult differentiateGroupedLinear(GroupedLinearOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  Type type = elementOf(dy);
  bool inOut = op.getInOut();
  if (vjp.wants(0))
    vjp.add(0, multiply(w, dy, w.cast(op.getWeight(), type), !inOut));
  if (vjp.wants(1)) {
    Value x = w.cast(op.getRows(), type);
    vjp.add(1, inOut ? sumProducts(w, x, dy) : sumProducts(w, dy, x));
  }
  return success();
}

static LogicalResult differentiateGroupedWeightGrad(GroupedWeightGradOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = w.cast(vjp.getCotangent(), elementOf(op.getLhs()));
  if (vjp.wants(0))
    vjp.add(0, multiply(w, op.getRhs(), dy, /*inOut=*/false));
  if (vjp.wants(1))
    vjp.add(1, multiply(w, op.getLhs(), dy, /*inOut=*/true));
  return success();
}

void meshwright::attachExpertModels(MLIRContext *context) {
  attachVjp<DispatchOp, differentiateDispatch>(context);
  attachVjp<CombineOp, differentiateCombine>(context);
  attachVjp<GroupedLinearOp, differentiateGroupedLinear>(context);
  attachVjp<GroupedWeightGradOp, differentiateGroupedWeightGrad>(context);
  attachConstant<TopKOp, LimitOp, RouteOp>(context);
  // Local programs have these.
  attachRefused<PageWriteOp, PagedAttentionOp, MergePartsOp>(context);
  attachRefused<SendRowsOp, ReturnRowsOp, TakeRowsOp, SumRowsOp, RepeatRowsOp, SumGroupsOp, GroupedProductOp, GroupedOuterOp>(context);
}

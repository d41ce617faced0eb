//===- Models.cpp - how ops differentiate ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/differentiate/Models.h"

#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

void Vjp::add(unsigned operand, Value term) {
  if (!wants(operand))
    return;
  RankedTensorType type = typeOf(op->getOperand(operand));
  if (shapeOf(term) != type.getShape() || bool(getRouted(term.getType())) != bool(getRouted(type)))
    term = writer.sumTo(getWide(term), type);
  term = writer.cast(term, wanted[operand]);
  Value &sum = contributions[operand];
  sum = sum ? writer.add(sum, term) : term;
}

/// The cotangent of a value is sharded as the value. Where the value is a partial sum, it is
/// the same on all ranks of the sum.
static LogicalResult differentiate(dist::ConstrainOp op, Vjp &vjp) {
  dist::ShardingAttr own = op.getSharding();
  auto sharding = dist::ShardingAttr::get(op->getContext(), own.getMesh(), own.getDims(), {},
                                          dist::ReductionKind::Sum);
  Writer &w = vjp.getWriter();
  vjp.add(0, dist::ConstrainOp::create(w.getBuilder(), w.getLoc(), vjp.getCotangent(), sharding));
  return success();
}

static LogicalResult differentiate(dist::FetchOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  vjp.add(0, dist::StowOp::create(w.getBuilder(), w.getLoc(), vjp.getCotangent(), op.getRowsAttr(),
                                  op.getAlignAttr()));
  return success();
}

static LogicalResult differentiate(dist::StowOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  vjp.add(0, dist::FetchOp::create(w.getBuilder(), w.getLoc(), vjp.getCotangent(), op.getRowsAttr(),
                                   op.getAlignAttr(), /*form=*/nullptr));
  return success();
}

void meshwright::registerDifferentiation(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, NnDialect *) {
    attachElementwiseModels(context);
    attachMovementModels(context);
    attachIndexingModels(context);
    attachReductionModels(context);
    attachProductModels(context);
    attachAttentionModels(context);
    attachExpertModels(context);
  });
  registry.addExtension(+[](MLIRContext *context, dist::DistDialect *) {
    attachVjp<dist::ConstrainOp, ::differentiate>(context);
    attachVjp<dist::FetchOp, ::differentiate>(context);
    attachVjp<dist::StowOp, ::differentiate>(context);
  });
}

//===- Attention.cpp - derivatives of attention and rotations -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// A table with the two features of each pair exchanged.
static Value exchangePairs(Writer &w, Value table, bool isInterleaved) {
  SmallVector<int64_t> shape(Writer::shapeOf(table));
  int64_t dim = shape.size() - 1, features = shape.back();
  if (!isInterleaved)
    return w.concat({w.slice(table, dim, features / 2, features),
                     w.slice(table, dim, 0, features / 2)},
                    dim);
  SmallVector<int64_t> pairs(shape);
  pairs.back() = features / 2;
  pairs.push_back(2);
  Value split = w.reshape(table, pairs);
  Value turned =
      w.concat({w.slice(split, dim + 1, 1, 2), w.slice(split, dim + 1, 0, 1)}, dim + 1);
  return w.reshape(turned, shape);
}

/// A rotation by the opposite angle. With y = x cos + rotate(x) sin, the transpose of the second
/// term is -rotate(dy sin), which is -rotate(dy) times sin with its pairs exchanged.
static LogicalResult differentiateRotary(RotaryOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  Type type = Writer::elementOf(dy);
  auto rotate = [&](Value x, Value cos, Value sin) {
    return RotaryOp::create(w.getBuilder(), w.getLoc(), x.getType(), x, cos, sin,
                            op.getInterleaved());
  };
  if (vjp.wants(0)) {
    Value sin = w.neg(exchangePairs(w, op.getSin(), op.getInterleaved()));
    vjp.add(0, rotate(dy, w.cast(op.getCos(), type), w.cast(sin, type)));
  }
  if (!vjp.wants(1) && !vjp.wants(2))
    return success();
  Value wideDy = vjp.getWideCotangent(), x = vjp.getWide(op.getInput());
  int64_t dim = Writer::typeOf(x).getRank() - 1, rotated = Writer::shapeOf(op.getCos()).back();
  wideDy = w.slice(wideDy, dim, 0, rotated);
  x = w.slice(x, dim, 0, rotated);
  if (vjp.wants(1))
    vjp.add(1, w.mul(wideDy, x));
  if (vjp.wants(2)) {
    auto table = RankedTensorType::get({rotated}, Writer::elementOf(x));
    vjp.add(2, w.mul(wideDy, rotate(x, w.fill(0, table), w.fill(1, table))));
  }
  return success();
}

/// The sums over the query heads of each key head.
static Value sumGroups(Writer &w, Value x, int64_t keyHeads) {
  SmallVector<int64_t> shape(Writer::shapeOf(x)), grouped(shape);
  if (shape[1] == keyHeads)
    return x;
  grouped[1] = keyHeads;
  grouped.insert(grouped.begin() + 2, shape[1] / keyHeads);
  return w.reduce(ReduceKind::Sum, w.reshape(x, grouped), {2}, /*keep=*/false);
}

static LogicalResult differentiateAttention(AttentionOp op, Vjp &vjp) {
  if (vjp.getCotangent(1))
    return op.emitOpError("cannot be differentiated by its log-sum-exp");
  Writer &w = vjp.getWriter();
  unsigned bias = op.getKeyPadding() ? 4 : 3;
  bool wantsBias = op.getBias() && vjp.wants(bias);
  Type type = w.getWide(Writer::elementOf(op.getQuery()));
  ArrayRef<int64_t> query = Writer::shapeOf(op.getQuery());
  int64_t keys = Writer::shapeOf(op.getKey())[2], keyHeads = Writer::shapeOf(op.getKey())[1];
  auto ofShape = [&](int64_t rows, int64_t columns) {
    return RankedTensorType::get({query[0], query[1], rows, columns}, type);
  };
  int64_t valueFeatures = Writer::shapeOf(op.getValue())[3];
  auto grad = AttentionGradOp::create(
      w.getBuilder(), w.getLoc(), ofShape(query[2], query[3]), ofShape(keys, query[3]),
      ofShape(keys, valueFeatures), wantsBias ? ofShape(query[2], keys) : Type(),
      w.cast(vjp.getCotangent(), Writer::elementOf(op.getQuery())), op.getQuery(), op.getKey(),
      op.getValue(), op.getResult(), w.cast(op.getLse(), type), op.getKeyPadding(), op.getBias(),
      op.getQPositions(), op.getKvPositions(), op.getKvLengths(), op.getScaleAttr(),
      op.getCausalAttr(), op.getWindowLeftAttr(), op.getWindowRightAttr(), op.getKvLengthAttr(),
      op.getSoftCapAttr());
  vjp.add(0, grad.getQueryGrad());
  if (vjp.wants(1))
    vjp.add(1, sumGroups(w, grad.getKeyGrad(), keyHeads));
  if (vjp.wants(2))
    vjp.add(2, sumGroups(w, grad.getValueGrad(), keyHeads));
  if (wantsBias)
    vjp.add(bias, grad.getBiasGrad());
  return success();
}

namespace {
/// The gradients read the log-sum-exp of the scores.
struct AttentionModel : DifferentiableOpInterface::ExternalModel<AttentionModel, AttentionOp> {
  LogicalResult buildVjp(Operation *op, Vjp &vjp) const {
    return differentiateAttention(cast<AttentionOp>(op), vjp);
  }
  Operation *prepare(Operation *op) const {
    auto attention = cast<AttentionOp>(op);
    if (attention.getLse())
      return op;
    OpBuilder builder(op);
    Type type = Writer(builder, op->getLoc()).getWide(Writer::elementOf(attention.getQuery()));
    RankedTensorType own = attention.getResult().getType();
    OperationState state(op->getLoc(), op->getName(), op->getOperands(),
                         {own, RankedTensorType::get(own.getShape().drop_back(), type)},
                         llvm::to_vector(op->getDiscardableAttrs()));
    state.propertiesAttr = op->getPropertiesAsAttribute();
    dist::ShardingAttr sharding = getShardingAttr(op->getResult(0));
    state.attributes.erase(dist::DistDialect::kShardingAttr);
    Operation *prepared = builder.create(state);
    if (sharding)
      setShardingAttr(prepared->getResult(0), sharding);
    op->getResult(0).replaceAllUsesWith(prepared->getResult(0));
    return prepared;
  }
};
} // namespace

void meshwright::attachAttentionModels(MLIRContext *context) {
  attachVjp<RotaryOp, differentiateRotary>(context);
  AttentionOp::attachInterface<AttentionModel>(*context);
  attachRefused<MergeAttentionOp, AttentionGradOp, GradientOp>(context);
}

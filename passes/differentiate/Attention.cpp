//===- Attention.cpp - derivatives of attention and rotations -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

/// A table with the two features of each pair exchanged.
static Value exchangePairs(Writer &w, Value table, bool isInterleaved) {
  SmallVector<int64_t> shape(shapeOf(table));
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
  Type type = elementOf(dy);
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
  int64_t dim = typeOf(x).getRank() - 1, rotated = shapeOf(op.getCos()).back();
  wideDy = w.slice(wideDy, dim, 0, rotated);
  x = w.slice(x, dim, 0, rotated);
  if (vjp.wants(1))
    vjp.add(1, w.mul(wideDy, x));
  if (vjp.wants(2)) {
    auto table = RankedTensorType::get({rotated}, elementOf(x));
    vjp.add(2, w.mul(wideDy, rotate(x, w.fill(0, table), w.fill(1, table))));
  }
  return success();
}

/// The log-sum-exp has a cotangent, too, where a loss reads it: its derivative by a score is the
/// weight of the score, so its cotangent is subtracted from delta.
static LogicalResult differentiateAttention(AttentionOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  unsigned bias = op.getKeyPadding() ? 4 : 3;
  bool wantsBias = op.getBias() && vjp.wants(bias);
  Type element = elementOf(op.getQuery()), type = getComputeType(element);
  RankedTensorType own = op.getResult().getType();
  Value cotangent = vjp.getCotangent() ? w.cast(vjp.getCotangent(), element) : w.fill(0, own);
  Value wideCotangent = vjp.getWide(cotangent), wideResult = vjp.getWide(op.getResult());
  Value delta = w.reduce(ReduceKind::Sum, w.mul(wideCotangent, wideResult), {3}, /*keep=*/false);
  if (Value ofLse = vjp.getCotangent(1))
    delta = w.sub(delta, w.cast(ofLse, type));
  auto wide = [&](Value value) { return typeOf(value).clone(type); };
  auto grad = AttentionGradOp::create(
      w.getBuilder(), w.getLoc(), wide(op.getQuery()), wide(op.getKey()), wide(op.getValue()),
      wantsBias ? wide(op.getBias()) : Type(), op.getQuery(), op.getKey(), op.getValue(),
      op.getKeyPadding(), op.getBias(), op.getQPositions(), op.getKvPositions(), op.getKvLengths(),
      op.getDropRows(), op.getDropKeys(), op.getSeed(), op.getStep(), op.getLse(), delta, cotangent, op.getScaleAttr(), op.getCausalAttr(), op.getWindowLeftAttr(),
      op.getWindowRightAttr(), op.getKvLengthAttr(), op.getSoftCapAttr(), op.getDropoutAttr(),
      op.getStreamAttr());
  // The gradients of a query's scores then add up to zero.
  if (!vjp.getCotangent(1))
    grad->setAttr(NnDialect::kWholeKeysAttr, w.getBuilder().getUnitAttr());
  Value gradients[] = {grad.getQueryGrad(), grad.getKeyGrad(), grad.getValueGrad()};
  for (auto [i, gradient] : llvm::enumerate(gradients))
    if (vjp.wants(i))
      vjp.add(i, gradient);
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
    Type type = getComputeType(elementOf(attention.getQuery()));
    // A mask of the least finite number needs a wide log-sum-exp to count the keys that it hides.
    // In f32 the rounding of large scores' log-sum-exp would be the largest error of a weight.
    if (attention.getBias() || elementOf(attention.getQuery()).isF32())
      type = builder.getF64Type();
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

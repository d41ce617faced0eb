//===- ExpandNorms.cpp - norms over sharded features ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/ExpandNorms.h"

#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace meshwright;

namespace {

/// Builds arithmetic ops on values of one element type.
class Arithmetic {
public:
  Arithmetic(Operation *op, Type element) : builder(op), loc(op->getLoc()), element(element) {}

  Value constant(double number) {
    auto type = RankedTensorType::get({}, element);
    return nn::ConstantOp::create(
        builder, loc, DenseElementsAttr::get(type, FloatAttr::get(element, number).getValue()));
  }
  /// `value` in this element type.
  Value cast(Value value) {
    auto type = llvm::cast<RankedTensorType>(value.getType());
    if (type.getElementType() == element)
      return value;
    return nn::CastOp::create(builder, loc, type.clone(element), value);
  }
  template <typename Op> Value unary(Value value) {
    return Op::create(builder, loc, value.getType(), value);
  }
  /// The left operand has the result's shape.
  template <typename Op> Value binary(Value lhs, Value rhs) {
    return Op::create(builder, loc, lhs.getType(), lhs, rhs);
  }
  /// The sum over the last dimension, which stays with size 1, over `count`.
  Value mean(Value value, int64_t count) {
    auto type = llvm::cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape.back() = 1;
    Value sum = nn::ReduceOp::create(
        builder, loc, RankedTensorType::get(shape, element),
        nn::ReduceKindAttr::get(builder.getContext(), nn::ReduceKind::Sum), value,
        builder.getDenseI64ArrayAttr({type.getRank() - 1}), builder.getUnitAttr());
    return binary<nn::MulOp>(sum, constant(1.0 / count));
  }

private:
  OpBuilder builder;
  Location loc;
  Type element;
};

} // namespace

bool meshwright::expandNorm(Operation *op) {
  auto rms = dyn_cast<nn::RmsNormOp>(op);
  auto layer = dyn_cast<nn::LayerNormOp>(op);
  if (!rms && !layer)
    return false;
  Value input = op->getOperand(0);
  Value weight = rms ? rms.getWeight() : layer.getWeight();
  auto type = cast<RankedTensorType>(input.getType());
  int64_t features = type.getShape().back();
  // Like the op itself, the sums compute in f32 and round at the end.
  Type element = type.getElementType();
  Type wide = getComputeType(element);
  Arithmetic math(op, wide);
  Value x = math.cast(input);
  if (layer)
    x = math.binary<nn::SubOp>(x, math.mean(x, features));
  Value variance = math.mean(math.binary<nn::MulOp>(x, x), features);
  double eps = (rms ? rms.getEps() : layer.getEps()).convertToDouble();
  Value scale = math.unary<nn::RsqrtOp>(math.binary<nn::AddOp>(variance, math.constant(eps)));
  Value result = math.binary<nn::MulOp>(x, scale);
  if (weight) {
    Value factor = math.cast(weight);
    if (rms && rms.getUnitOffset())
      factor = math.binary<nn::AddOp>(factor, math.constant(1.0));
    result = math.binary<nn::MulOp>(result, factor);
  }
  if (layer && layer.getBias())
    result = math.binary<nn::AddOp>(result, math.cast(layer.getBias()));
  result = Arithmetic(op, element).cast(result);
  if (Attribute id = op->getAttr(nn::NnDialect::kIdAttr))
    result.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  op->getResult(0).replaceAllUsesWith(result);
  op->erase();
  return true;
}

//===- Elementwise.cpp - derivatives of elementwise ops -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnDerivatives.h"
#include "meshwright/dialects/Nn/NnRandom.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Vjp.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

//===----------------------------------------------------------------------===//
// Functions of one number
//===----------------------------------------------------------------------===//

/// The cotangent of x, given that of y = f(x). All are in the wide type.
using Slope = Value (*)(Writer &w, Value dy, Value x, Value y);

template <typename OpT, Slope slope> static LogicalResult differentiate(OpT op, Vjp &vjp) {
  Value dy = vjp.getWideCotangent();
  vjp.add(0, slope(vjp.getWriter(), dy, vjp.getWide(op.getInput()), vjp.getWide(op.getResult())));
  return success();
}

template <typename OpT, Slope slope> static void attachSlope(MLIRContext *context) {
  attachVjp<OpT, differentiate<OpT, slope>>(context);
}

static Value ofNeg(Writer &w, Value dy, Value, Value) { return w.neg(dy); }

/// The cotangent times the sign: NaN where an infinite one meets zero.
static Value ofAbs(Writer &w, Value dy, Value x, Value) {
  Type element = elementOf(x);
  Value one = w.number(1, element), sign = w.keepWhere(w.compare(CompareKind::Gt, x, 0), one);
  return w.mul(dy, w.select(w.compare(CompareKind::Lt, x, 0), w.number(-1, element), sign));
}

static Value ofExp(Writer &w, Value dy, Value, Value y) { return w.mul(dy, y); }
static Value ofLog(Writer &w, Value dy, Value x, Value) { return w.div(dy, x); }
static Value ofSqrt(Writer &w, Value dy, Value, Value y) { return w.div(dy, w.scale(y, 2)); }

static Value ofRsqrt(Writer &w, Value dy, Value, Value y) {
  return w.mul(dy, w.scale(w.mul(y, w.mul(y, y)), -0.5));
}

static Value ofReciprocal(Writer &w, Value dy, Value, Value y) {
  return w.neg(w.mul(dy, w.mul(y, y)));
}

static Value ofSin(Writer &w, Value dy, Value x, Value) { return w.mul(dy, w.unary<CosOp>(x)); }

static Value ofCos(Writer &w, Value dy, Value x, Value) {
  return w.neg(w.mul(dy, w.unary<SinOp>(x)));
}

static Value ofErf(Writer &w, Value dy, Value x, Value) {
  Value bell = w.unary<ExpOp>(w.neg(w.mul(x, x)));
  return w.mul(dy, w.scale(bell, 2 * llvm::numbers::inv_sqrtpi));
}

static Value ofRelu(Writer &w, Value dy, Value, Value y) {
  // Also where y is NaN.
  return w.select(w.compare(CompareKind::Le, y, 0), w.number(0, elementOf(dy)), dy);
}

/// x s has the slope s (1 + x (1 - s)), as the sigmoid s has the slope s (1 - s).
static Value ofSilu(Writer &w, Value dy, Value x, Value) {
  Value s = w.unary<SigmoidOp>(x);
  Value rest = w.addNumber(w.neg(s), 1);
  return w.mul(dy, w.mul(s, w.addNumber(w.mul(x, rest), 1)));
}

static Value ofTanh(Writer &w, Value dy, Value, Value y) {
  return w.mul(dy, w.addNumber(w.neg(w.mul(y, y)), 1));
}

static Value ofSigmoid(Writer &w, Value dy, Value, Value y) {
  return w.mul(dy, w.mul(y, w.addNumber(w.neg(y), 1)));
}

/// x times the normal distribution: the distribution, plus x times its density.
static Value ofGelu(Writer &w, Value dy, Value x) {
  Value distribution =
      w.scale(w.addNumber(w.unary<ErfOp>(w.scale(x, llvm::numbers::inv_sqrt2)), 1), 0.5);
  Value bell = w.unary<ExpOp>(w.scale(w.mul(x, x), -0.5));
  double height = llvm::numbers::inv_sqrtpi * llvm::numbers::inv_sqrt2;
  return w.mul(dy, w.add(distribution, w.mul(x, w.scale(bell, height))));
}

/// 0.5 x (1 + t), where t = tanh(k (x + c x^3)).
static Value ofTanhGelu(Writer &w, Value dy, Value x) {
  constexpr double kCubic = 0.044715;
  double k = llvm::numbers::sqrt2 * llvm::numbers::inv_sqrtpi;
  Value square = w.mul(x, x);
  Value inner = w.scale(w.mul(x, w.addNumber(w.scale(square, kCubic), 1)), k);
  Value t = w.unary<TanhOp>(inner);
  Value slope = w.addNumber(w.neg(w.mul(t, t)), 1);
  Value ofInner = w.scale(w.addNumber(w.scale(square, 3 * kCubic), 1), 0.5 * k);
  Value first = w.scale(w.addNumber(t, 1), 0.5);
  return w.mul(dy, w.add(first, w.mul(x, w.mul(slope, ofInner))));
}

static LogicalResult differentiateGelu(GeluOp op, Vjp &vjp) {
  Value dy = vjp.getWideCotangent(), x = vjp.getWide(op.getInput());
  vjp.add(0, op.getApproximateTanh() ? ofTanhGelu(vjp.getWriter(), dy, x)
                                     : ofGelu(vjp.getWriter(), dy, x));
  return success();
}

//===----------------------------------------------------------------------===//
// Functions of two numbers
//===----------------------------------------------------------------------===//

static LogicalResult differentiateAdd(AddOp op, Vjp &vjp) {
  vjp.add(0, vjp.getCotangent());
  vjp.add(1, vjp.getCotangent());
  return success();
}

static LogicalResult differentiateSub(SubOp op, Vjp &vjp) {
  vjp.add(0, vjp.getCotangent());
  if (vjp.wants(1))
    vjp.add(1, vjp.getWriter().neg(vjp.getCotangent()));
  return success();
}

static LogicalResult differentiateMul(MulOp op, Vjp &vjp) {
  Value dy = vjp.getWideCotangent();
  if (vjp.wants(0))
    vjp.add(0, vjp.getWriter().mul(dy, vjp.getWide(op.getRhs())));
  if (vjp.wants(1))
    vjp.add(1, vjp.getWriter().mul(dy, vjp.getWide(op.getLhs())));
  return success();
}

static LogicalResult differentiateDiv(DivOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), below = vjp.getWide(op.getRhs());
  if (vjp.wants(0))
    vjp.add(0, w.div(dy, below));
  // The cotangent over a tiny number may be infinite where the result is 0.
  if (vjp.wants(1))
    vjp.add(1, w.neg(w.mul(dy, w.div(vjp.getWide(op.getResult()), below))));
  return success();
}

/// x - y floor(x / y): the floor is a constant.
static LogicalResult differentiateRem(RemOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent();
  vjp.add(0, dy);
  if (vjp.wants(1)) {
    Value quotient = w.div(vjp.getWide(op.getLhs()), vjp.getWide(op.getRhs()));
    vjp.add(1, w.neg(w.mul(dy, w.unary<FloorOp>(quotient))));
  }
  return success();
}

/// The number that all elements of a value are, if it is a constant.
static std::optional<double> getSplat(Value value) {
  auto constant = value.getDefiningOp<ConstantOp>();
  auto elements = constant ? dyn_cast<SplatElementsAttr>(constant.getValue()) : nullptr;
  if (!elements || !isa<FloatType>(elements.getElementType()))
    return std::nullopt;
  APFloat number = elements.getSplatValue<APFloat>();
  bool losesInfo;
  number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &losesInfo);
  return number.convertToDouble();
}

/// x^p has the slopes p x^(p - 1) and x^p log(x). A power of zero has no slope in x. Zero to a
/// power that is not negative has no slope in p.
static LogicalResult differentiatePow(PowOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), x = vjp.getWide(op.getLhs()), p = vjp.getWide(op.getRhs());
  if (vjp.wants(0)) {
    Value slope;
    if (std::optional<double> power = getSplat(op.getRhs())) {
      Value less = w.number(*power - 1, elementOf(x));
      slope = *power == 2 ? w.scale(x, 2) : w.scale(w.binary<PowOp>(x, less), *power);
      if (*power == 0)
        slope = w.number(0, elementOf(x));
    } else {
      slope = w.mul(p, w.binary<PowOp>(x, w.addNumber(p, -1)));
      slope = w.select(w.compare(CompareKind::Eq, p, 0), w.number(0, elementOf(x)), slope);
    }
    vjp.add(0, w.mul(dy, slope));
  }
  if (vjp.wants(1)) {
    Value slope = w.mul(vjp.getWide(op.getResult()), w.unary<LogOp>(x));
    Value isFlat = w.binary<AndOp>(w.compare(CompareKind::Eq, x, 0), w.compare(CompareKind::Ge, p, 0));
    vjp.add(1, w.mul(dy, w.select(isFlat, w.number(0, elementOf(x)), slope)));
  }
  return success();
}

/// `isAhead` holds where the left operand decides. Where both are equal, each takes half, or one
/// that is alone takes all, as behind a constant bound.
static LogicalResult differentiateExtreme(Operation *op, Vjp &vjp, CompareKind isAhead) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getWideCotangent(), operands[] = {op->getOperand(0), op->getOperand(1)};
  bool both = vjp.wants(0) && vjp.wants(1);
  for (unsigned i : {0, 1}) {
    if (!vjp.wants(i))
      continue;
    Value own = operands[i], other = operands[1 - i];
    Value isEqual = w.compare(CompareKind::Eq, own, other);
    Value tie = w.keepWhere(isEqual, both ? w.scale(dy, 0.5) : dy);
    vjp.add(i, w.select(w.compare(isAhead, own, other), dy, tie));
  }
  return success();
}

static LogicalResult differentiateMaximum(MaximumOp op, Vjp &vjp) {
  return differentiateExtreme(op, vjp, CompareKind::Gt);
}
static LogicalResult differentiateMinimum(MinimumOp op, Vjp &vjp) {
  return differentiateExtreme(op, vjp, CompareKind::Lt);
}

//===----------------------------------------------------------------------===//
// Others
//===----------------------------------------------------------------------===//

static LogicalResult differentiateSelect(SelectOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent(), zero = w.number(0, elementOf(dy));
  if (vjp.wants(1))
    vjp.add(1, w.select(op.getCondition(), dy, zero));
  if (vjp.wants(2))
    vjp.add(2, w.select(op.getCondition(), zero, dy));
  return success();
}

/// The op is its own transpose.
static LogicalResult differentiateDropout(DropoutOp op, Vjp &vjp) {
  Writer &w = vjp.getWriter();
  Value dy = vjp.getCotangent();
  vjp.add(0, DropoutOp::create(w.getBuilder(), w.getLoc(), dy.getType(), dy, op.getIndex(),
                               op.getSeed(), op.getStep(), op.getProbabilityAttr(),
                               op.getStreamAttr()));
  return success();
}

/// A step function of a float: PyTorch gives zeros, while a comparison ends the dependence.
static LogicalResult differentiateFloor(FloorOp, Vjp &) { return success(); }

static LogicalResult differentiateCast(CastOp op, Vjp &vjp) {
  vjp.add(0, vjp.getCotangent());
  return success();
}

static LogicalResult differentiateWithDerivative(WithDerivativeOp, Vjp &vjp) {
  vjp.add(1, vjp.getCotangent());
  return success();
}

void meshwright::attachElementwiseModels(MLIRContext *context) {
  attachSlope<NegOp, ofNeg>(context);
  attachSlope<AbsOp, ofAbs>(context);
  attachSlope<ExpOp, ofExp>(context);
  attachSlope<LogOp, ofLog>(context);
  attachSlope<SqrtOp, ofSqrt>(context);
  attachSlope<RsqrtOp, ofRsqrt>(context);
  attachSlope<ReciprocalOp, ofReciprocal>(context);
  attachSlope<SinOp, ofSin>(context);
  attachSlope<CosOp, ofCos>(context);
  attachSlope<ErfOp, ofErf>(context);
  attachSlope<ReluOp, ofRelu>(context);
  attachSlope<SiluOp, ofSilu>(context);
  attachSlope<TanhOp, ofTanh>(context);
  attachSlope<SigmoidOp, ofSigmoid>(context);
  attachVjp<GeluOp, differentiateGelu>(context);
  attachVjp<AddOp, differentiateAdd>(context);
  attachVjp<SubOp, differentiateSub>(context);
  attachVjp<MulOp, differentiateMul>(context);
  attachVjp<DivOp, differentiateDiv>(context);
  attachVjp<RemOp, differentiateRem>(context);
  attachVjp<PowOp, differentiatePow>(context);
  attachVjp<MaximumOp, differentiateMaximum>(context);
  attachVjp<MinimumOp, differentiateMinimum>(context);
  attachVjp<SelectOp, differentiateSelect>(context);
  attachVjp<DropoutOp, differentiateDropout>(context);
  attachVjp<CastOp, differentiateCast>(context);
  attachVjp<FloorOp, differentiateFloor>(context);
  attachVjp<WithDerivativeOp, differentiateWithDerivative>(context);
  attachConstant<StopGradientOp, NotOp, AndOp, OrOp, XorOp, CompareOp, RandomOp, WidenOp, DequantizeOp>(context);
}

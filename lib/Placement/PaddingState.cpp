//===- PaddingState.cpp - what ops make of padding's content --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/PaddingState.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "llvm/ADT/TypeSwitch.h"
#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::padding;

bool padding::isFinite(State state) {
  return !state || *state == Padding::Finite || isNonNegative(state);
}

bool padding::isNonNegative(State state) {
  return state &&
         (*state == Padding::Zero || *state == Padding::Positive || *state == Padding::NonNegative);
}

bool padding::isMaskable(State state) { return !state || *state != Padding::Arbitrary; }

Padding padding::meet(State a, State b) {
  Padding x = a.value_or(Padding::Finite), y = b.value_or(Padding::Finite);
  if (x == y)
    return x;
  if (isNonNegative(x) && isNonNegative(y))
    return Padding::NonNegative;
  if (isFinite(x) && isFinite(y))
    return Padding::Finite;
  return isMaskable(x) && isMaskable(y) ? Padding::FiniteOrNegInf : Padding::Arbitrary;
}

Padding padding::add(State a, State b) {
  if (a == Padding::Zero || b == Padding::Zero)
    return (a == Padding::Zero ? b : a).value_or(Padding::Finite);
  if (isNonNegative(a) && isNonNegative(b))
    return a == Padding::Positive || b == Padding::Positive ? Padding::Positive
                                                            : Padding::NonNegative;
  if (isFinite(a) && isFinite(b))
    return Padding::Finite;
  if (!isMaskable(a) || !isMaskable(b))
    return Padding::Arbitrary;
  return a == Padding::NegInf || b == Padding::NegInf ? Padding::NegInf : Padding::FiniteOrNegInf;
}

Padding padding::multiply(State a, State b) {
  if (!isFinite(a) || !isFinite(b))
    return Padding::Arbitrary;
  if (a == Padding::Zero || b == Padding::Zero)
    return Padding::Zero;
  if (!isNonNegative(a) || !isNonNegative(b))
    return Padding::Finite;
  return a == b ? *a : Padding::NonNegative;
}

Padding padding::ofConstant(double value) {
  if (value == 0)
    return Padding::Zero;
  if (std::isfinite(value))
    return value > 0 ? Padding::Positive : Padding::Finite;
  return std::isinf(value) && value < 0 ? Padding::NegInf : Padding::Arbitrary;
}

std::optional<double> padding::getSplat(Value value) {
  auto constant = rt::getSource(value).getDefiningOp<nn::ConstantOp>();
  if (!constant)
    return std::nullopt;
  auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
  if (!elements || !elements.isSplat())
    return std::nullopt;
  Type type = elements.getElementType();
  if (isa<FloatType>(type)) {
    APFloat number = elements.getSplatValue<APFloat>();
    bool losesInfo;
    number.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &losesInfo);
    return number.convertToDouble();
  }
  if (type.isInteger(1))
    return elements.getSplatValue<bool>() ? 1.0 : 0.0;
  if (type.isIntOrIndex())
    return static_cast<double>(elements.getSplatValue<APInt>().getSExtValue());
  return std::nullopt;
}

static Padding negate(State a) {
  if (a == Padding::Zero)
    return Padding::Zero;
  return isFinite(a) ? Padding::Finite : Padding::Arbitrary;
}

static Padding magnitude(State a) {
  if (isNonNegative(a))
    return *a;
  return isFinite(a) ? Padding::NonNegative : Padding::Arbitrary;
}

/// A quotient: true data and nonzero constants divide safely, padding may be 0.
static Padding divide(nn::DivOp op, ArrayRef<State> in) {
  std::optional<double> divisor = getSplat(op.getRhs());
  bool safe =
      divisor ? *divisor != 0 && std::isfinite(*divisor) : !in[1] || in[1] == Padding::Positive;
  return safe ? multiply(in[0], in[1]) : Padding::Arbitrary;
}

static Padding power(nn::PowOp op, ArrayRef<State> in) {
  std::optional<double> exponent = getSplat(op.getRhs());
  if (!exponent || !std::isfinite(*exponent) || !isFinite(in[0]))
    return Padding::Arbitrary;
  if (in[0] == Padding::Positive)
    return Padding::Positive;
  if (*exponent <= 0)
    return Padding::Arbitrary;
  if (isNonNegative(in[0]))
    return *in[0];
  if (std::floor(*exponent) != *exponent)
    return Padding::Arbitrary;
  return std::fmod(*exponent, 2) == 0 ? Padding::NonNegative : Padding::Finite;
}

static Padding maximum(State a, State b) {
  if (a == b && a)
    return *a;
  if (!isMaskable(a) || !isMaskable(b))
    return Padding::Arbitrary;
  if (a == Padding::NegInf)
    return b.value_or(Padding::Finite);
  if (b == Padding::NegInf)
    return a.value_or(Padding::Finite);
  if (a == Padding::Positive || b == Padding::Positive)
    return Padding::Positive;
  if (isNonNegative(a) || isNonNegative(b))
    return Padding::NonNegative;
  return isFinite(a) || isFinite(b) ? Padding::Finite : Padding::FiniteOrNegInf;
}

static Padding minimum(State a, State b) {
  if (!isMaskable(a) || !isMaskable(b))
    return Padding::Arbitrary;
  return a == Padding::NegInf || b == Padding::NegInf ? Padding::NegInf : meet(a, b);
}

static Padding evaluateFloat(Operation *op, ArrayRef<State> in) {
  State a = in[0];
  auto finiteAs = [&](Padding finite) { return isFinite(a) ? finite : Padding::Arbitrary; };
  auto zeroKeeping = [&] { return finiteAs(a == Padding::Zero ? Padding::Zero : Padding::Finite); };
  return llvm::TypeSwitch<Operation *, Padding>(op)
      .Case<nn::NegOp>([&](auto) { return negate(a); })
      .Case<nn::AbsOp>([&](auto) { return magnitude(a); })
      .Case<nn::SinOp, nn::GeluOp, nn::SiluOp>([&](auto) { return zeroKeeping(); })
      .Case<nn::CosOp>([&](auto) { return finiteAs(Padding::Finite); })
      .Case<nn::TanhOp, nn::ErfOp>([&](auto) {
        return isFinite(a) ? zeroKeeping() : isMaskable(a) ? Padding::Finite : Padding::Arbitrary;
      })
      .Case<nn::SigmoidOp>([&](auto) {
        return a == Padding::NegInf ? Padding::Zero
               : isMaskable(a)      ? Padding::NonNegative
                                    : Padding::Arbitrary;
      })
      .Case<nn::ReluOp>([&](auto) { return maximum(a, Padding::Zero); })
      .Case<nn::CastOp, nn::BroadcastOp>([&](auto) { return meet(a, a); })
      .Case<nn::FloorOp>(
          [&](auto) { return a == Padding::Positive ? Padding::NonNegative : meet(a, a); })
      .Case<nn::ExpOp>([&](auto) {
        // A finite value's exponential may overflow.
        return a == Padding::Zero     ? Padding::Positive
               : a == Padding::NegInf ? Padding::Zero
               : !a                   ? Padding::Finite
                                      : Padding::Arbitrary;
      })
      .Case<nn::SqrtOp>([&](auto) {
        return isNonNegative(a) ? *a : !a ? Padding::Finite : Padding::Arbitrary;
      })
      .Case<nn::RsqrtOp, nn::ReciprocalOp>([&](auto) {
        return a == Padding::Positive ? *a : !a ? Padding::Finite : Padding::Arbitrary;
      })
      .Case<nn::LogOp>(
          [&](auto) { return !a || a == Padding::Positive ? Padding::Finite : Padding::Arbitrary; })
      .Case<nn::AddOp>([&](auto) { return padding::add(a, in[1]); })
      .Case<nn::SubOp>(
          [&](auto) { return isFinite(in[1]) ? padding::add(a, in[1]) : Padding::Arbitrary; })
      .Case<nn::MulOp>([&](auto) {
        Padding product = multiply(a, in[1]);
        bool square = op->getOperand(0) == op->getOperand(1);
        return square && product == Padding::Finite ? Padding::NonNegative : product;
      })
      .Case<nn::DivOp>([&](nn::DivOp div) { return divide(div, in); })
      .Case<nn::PowOp>([&](nn::PowOp pow) { return power(pow, in); })
      .Case<nn::MaximumOp>([&](auto) { return maximum(a, in[1]); })
      .Case<nn::MinimumOp>([&](auto) { return minimum(a, in[1]); })
      .Case<nn::SelectOp>(
          [&](auto) { return in[0] == Padding::Zero ? meet(in[2], in[2]) : meet(in[1], in[2]); })
      .Case<nn::RotaryOp>(
          [&](auto) { return padding::add(multiply(a, in[1]), multiply(a, in[2])); })
      .Default([&](Operation *) {
        // A remainder: defined on true data only.
        return llvm::all_of(in, [](State s) { return !s; }) ? Padding::Finite : Padding::Arbitrary;
      });
}

Padding padding::evaluateElementwise(Operation *op, ArrayRef<State> in) {
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  if (isa<FloatType>(type))
    return evaluateFloat(op, in);
  // Integers are always finite; a division by padding is the one trap.
  auto zeros = [&](unsigned i) { return in[i] == Padding::Zero; };
  bool zero =
      llvm::TypeSwitch<Operation *, bool>(op)
          .Case<nn::MulOp, nn::AndOp>([&](auto) { return zeros(0) || zeros(1); })
          .Case<nn::AddOp, nn::SubOp, nn::OrOp, nn::XorOp, nn::MaximumOp, nn::MinimumOp>(
              [&](auto) { return zeros(0) && zeros(1); })
          .Case<nn::NegOp, nn::AbsOp, nn::CastOp, nn::BroadcastOp>([&](auto) { return zeros(0); })
          .Case<nn::SelectOp>([&](auto) { return zeros(2) && (zeros(0) || zeros(1)); })
          .Default(false);
  if (zero)
    return Padding::Zero;
  if (isa<nn::DivOp, nn::RemOp>(op)) {
    std::optional<double> divisor = getSplat(op->getOperand(1));
    if (divisor ? *divisor == 0 : in[1].has_value())
      return Padding::Arbitrary;
  }
  return Padding::Finite;
}

llvm::StringRef padding::toString(Padding padding) {
  switch (padding) {
  case Padding::Zero:
    return "zero";
  case Padding::NegInf:
    return "minus infinity";
  case Padding::Finite:
    return "finite";
  case Padding::Positive:
    return "positive";
  case Padding::NonNegative:
    return "not negative";
  case Padding::FiniteOrNegInf:
    return "finite or minus infinity";
  case Padding::Arbitrary:
    return "arbitrary";
  }
  llvm_unreachable("unknown padding");
}

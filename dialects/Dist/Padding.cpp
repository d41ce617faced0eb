//===- Padding.cpp - the content of padding -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Padding.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/TypeUtilities.h"

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

Padding padding::maximum(State a, State b) {
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

Padding padding::ofConstant(double value) {
  if (value == 0)
    return Padding::Zero;
  if (std::isfinite(value))
    return value > 0 ? Padding::Positive : Padding::Finite;
  return std::isinf(value) && value < 0 ? Padding::NegInf : Padding::Arbitrary;
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

Padding padding::getFiniteCorner(Operation *op, const Operands &in) {
  for (auto [i, operand] : llvm::enumerate(op->getOperands()))
    if (isa<FloatType>(getElementTypeOrSelf(operand.getType())) && !isFinite(in.getOverall(i)))
      return Padding::Arbitrary;
  return Padding::Finite;
}

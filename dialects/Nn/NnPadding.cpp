//===- NnPadding.cpp - padding rules of ops -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Implements PaddingOpInterface. Integers are always finite, so their padding is zero or
// finite, and arbitrary only where a division by it could trap.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

static bool isFloat(Operation *op) {
  return isa<FloatType>(getElementTypeOrSelf(op->getResult(0).getType()));
}

static bool isZero(State state) { return state == Padding::Zero; }

static Padding finiteIf(State state, Padding result) {
  return isFinite(state) ? result : Padding::Arbitrary;
}

/// Of an odd function: f(0) = 0.
static Padding keepZero(State state) {
  return finiteIf(state, isZero(state) ? Padding::Zero : Padding::Finite);
}

static Padding ofInteger(bool isZero) { return isZero ? Padding::Zero : Padding::Finite; }

/// A division of integers by zero traps.
static Padding ofIntegerDivision(const Operands &in) {
  std::optional<double> divisor = in.getSplat(1);
  bool isSafe = divisor ? *divisor != 0 : !in[1];
  return isSafe ? Padding::Finite : Padding::Arbitrary;
}

Padding NegOp::getResultPadding(const Operands &in) {
  return isFloat(*this) ? keepZero(in[0]) : ofInteger(isZero(in[0]));
}

Padding AbsOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofInteger(isZero(in[0]));
  return isNonNegative(in[0]) ? *in[0] : finiteIf(in[0], Padding::NonNegative);
}

Padding ExpOp::getResultPadding(const Operands &in) {
  // The exponential of something finite may overflow.
  return isZero(in[0])              ? Padding::Positive
         : in[0] == Padding::NegInf ? Padding::Zero
         : !in[0]                   ? Padding::Finite
                                    : Padding::Arbitrary;
}

Padding LogOp::getResultPadding(const Operands &in) {
  return !in[0] || in[0] == Padding::Positive ? Padding::Finite : Padding::Arbitrary;
}

Padding SqrtOp::getResultPadding(const Operands &in) {
  return isNonNegative(in[0]) ? *in[0] : !in[0] ? Padding::Finite : Padding::Arbitrary;
}

static Padding invert(State state) {
  return state == Padding::Positive ? *state : !state ? Padding::Finite : Padding::Arbitrary;
}
Padding RsqrtOp::getResultPadding(const Operands &in) { return invert(in[0]); }
Padding ReciprocalOp::getResultPadding(const Operands &in) { return invert(in[0]); }

Padding SinOp::getResultPadding(const Operands &in) { return keepZero(in[0]); }
Padding CosOp::getResultPadding(const Operands &in) { return finiteIf(in[0], Padding::Finite); }

/// Of a function into a bounded range, which masked elements do not leave either.
static Padding bound(State state) {
  return isFinite(state)     ? keepZero(state)
         : isMaskable(state) ? Padding::Finite
                             : Padding::Arbitrary;
}
Padding TanhOp::getResultPadding(const Operands &in) { return bound(in[0]); }
Padding ErfOp::getResultPadding(const Operands &in) { return bound(in[0]); }

Padding SigmoidOp::getResultPadding(const Operands &in) {
  return in[0] == Padding::NegInf ? Padding::Zero
         : isMaskable(in[0])      ? Padding::NonNegative
                                  : Padding::Arbitrary;
}

Padding FloorOp::getResultPadding(const Operands &in) {
  return in[0] == Padding::Positive ? Padding::NonNegative : meet(in[0], in[0]);
}

Padding NotOp::getResultPadding(const Operands &) { return Padding::Finite; }
Padding ReluOp::getResultPadding(const Operands &in) { return maximum(in[0], Padding::Zero); }
Padding SiluOp::getResultPadding(const Operands &in) { return keepZero(in[0]); }
Padding GeluOp::getResultPadding(const Operands &in) { return keepZero(in[0]); }

Padding AddOp::getResultPadding(const Operands &in) {
  return isFloat(*this) ? add(in[0], in[1]) : ofInteger(isZero(in[0]) && isZero(in[1]));
}

Padding SubOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofInteger(isZero(in[0]) && isZero(in[1]));
  return isFinite(in[1]) ? add(in[0], in[1]) : Padding::Arbitrary;
}

Padding MulOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofInteger(isZero(in[0]) || isZero(in[1]));
  Padding product = multiply(in[0], in[1]);
  bool isSquare = getLhs() == getRhs();
  return isSquare && product == Padding::Finite ? Padding::NonNegative : product;
}

Padding DivOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofIntegerDivision(in);
  // True data and nonzero constants divide safely, padding may be zero.
  std::optional<double> divisor = in.getSplat(1);
  bool isSafe =
      divisor ? *divisor != 0 && std::isfinite(*divisor) : !in[1] || in[1] == Padding::Positive;
  return isSafe ? multiply(in[0], in[1]) : Padding::Arbitrary;
}

Padding RemOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofIntegerDivision(in);
  return !in[0] && !in[1] ? Padding::Finite : Padding::Arbitrary;
}

Padding PowOp::getResultPadding(const Operands &in) {
  std::optional<double> exponent = in.getSplat(1);
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

Padding MaximumOp::getResultPadding(const Operands &in) {
  return isFloat(*this) ? maximum(in[0], in[1]) : ofInteger(isZero(in[0]) && isZero(in[1]));
}

Padding MinimumOp::getResultPadding(const Operands &in) {
  if (!isFloat(*this))
    return ofInteger(isZero(in[0]) && isZero(in[1]));
  if (!isMaskable(in[0]) || !isMaskable(in[1]))
    return Padding::Arbitrary;
  return in[0] == Padding::NegInf || in[1] == Padding::NegInf ? Padding::NegInf
                                                              : meet(in[0], in[1]);
}

Padding AndOp::getResultPadding(const Operands &in) {
  return ofInteger(isZero(in[0]) || isZero(in[1]));
}
Padding OrOp::getResultPadding(const Operands &in) {
  return ofInteger(isZero(in[0]) && isZero(in[1]));
}
Padding XorOp::getResultPadding(const Operands &in) {
  return ofInteger(isZero(in[0]) && isZero(in[1]));
}

Padding CompareOp::getResultPadding(const Operands &) { return Padding::Finite; }

Padding SelectOp::getResultPadding(const Operands &in) {
  // A condition that is false selects the last operand.
  if (!isFloat(*this))
    return ofInteger(isZero(in[2]) && (isZero(in[0]) || isZero(in[1])));
  return isZero(in[0]) ? meet(in[2], in[2]) : meet(in[1], in[2]);
}

Padding CastOp::getResultPadding(const Operands &in) {
  return isFloat(*this) ? meet(in[0], in[0]) : ofInteger(isZero(in[0]));
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

Padding ConstantOp::getResultPadding(const Operands &) {
  auto elements = dyn_cast<DenseFPElementsAttr>(getValue());
  if (!elements || !elements.isSplat())
    return Padding::Finite;
  return ofConstant(elements.getSplatValue<APFloat>().convertToDouble());
}

Padding IotaOp::getResultPadding(const Operands &) { return Padding::Finite; }

/// Of ops that take elements of their first operand.
static Padding keepFirst(Operation *op, State state) {
  return isFloat(op) ? meet(state, state) : ofInteger(isZero(state));
}
Padding ReshapeOp::getResultPadding(const Operands &in) { return meet(in[0], in[0]); }
Padding TransposeOp::getResultPadding(const Operands &in) { return meet(in[0], in[0]); }
Padding SliceOp::getResultPadding(const Operands &in) { return meet(in[0], in[0]); }
Padding BroadcastOp::getResultPadding(const Operands &in) { return keepFirst(*this, in[0]); }

Padding ConcatOp::getResultPadding(const Operands &in) {
  State state = in[0];
  for (State other : in.getStates())
    state = meet(state, other);
  return *state;
}

/// Of ops that read operand `table` by index: any of its elements may stand where the
/// indices are padding.
static Padding lookUp(const Operands &in, unsigned table) {
  if (in.isPaddingOf(table))
    return meet(in[table], in[table]);
  return meet(Padding::Finite, in.getOverall(table));
}
Padding GatherOp::getResultPadding(const Operands &in) { return lookUp(in, 0); }
Padding TakeAlongOp::getResultPadding(const Operands &in) { return lookUp(in, 0); }
Padding EmbeddingOp::getResultPadding(const Operands &in) { return lookUp(in, 1); }

Padding IndexCopyOp::getResultPadding(const Operands &in) {
  return isFloat(*this) ? meet(in[0], in[2]) : ofInteger(isZero(in[0]) && isZero(in[2]));
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

/// The state of all elements of the first operand that one of the result depends on.
static Padding ofRow(const Operands &in) {
  Padding state = meet(in[0], in[0]);
  in.visitReadCorners(
      [&](llvm::function_ref<State(unsigned)> corner) { state = meet(state, corner(0)); });
  return state;
}

Padding ReduceOp::getResultPadding(const Operands &in) {
  // A maximum ignores masked elements.
  Padding state = ofRow(in);
  bool isMasked = getKind() == ReduceKind::Max && isMaskable(state);
  return isMasked && isFinite(in[0]) ? meet(in[0], in[0]) : state;
}

std::optional<Need> ReduceOp::getPaddingNeed() {
  switch (getKind()) {
  case ReduceKind::Sum:
    return Need{Padding::Zero, "expected zero"};
  case ReduceKind::Max:
    return Need{Padding::NegInf, "expected minus infinity"};
  case ReduceKind::Mean:
    return Need{std::nullopt, "and would count it in the mean"};
  case ReduceKind::Min:
    return Need{std::nullopt, "and would count it in the minimum"};
  }
  llvm_unreachable("unknown reduction");
}

Padding CumsumOp::getResultPadding(const Operands &in) {
  return in.isAlongResult(getDim()) ? add(in[0], Padding::Finite) : ofRow(in);
}

Padding SoftmaxOp::getResultPadding(const Operands &in) {
  if (in.isAlongResult(getDim()))
    return Padding::Zero;
  Padding state = ofRow(in);
  return state == Padding::NegInf ? Padding::Zero
         : isMaskable(state)      ? Padding::Finite
                                  : Padding::Arbitrary;
}

Padding SoftmaxOp::getCornerPadding(const Operands &in) {
  return isMaskable(in.getOverall(0)) ? Padding::Finite : Padding::Arbitrary;
}

std::optional<Need> SoftmaxOp::getPaddingNeed() {
  return Need{Padding::NegInf, "expected minus infinity"};
}

Padding CrossEntropyOp::getResultPadding(const Operands &in) {
  return isFinite(ofRow(in)) ? Padding::Finite : Padding::Arbitrary;
}

std::optional<Need> CrossEntropyOp::getPaddingNeed() {
  return Need{std::nullopt, "and would count it as a class"};
}

//===----------------------------------------------------------------------===//
// Layers
//===----------------------------------------------------------------------===//

/// A sum of products, tail and corners.
static Padding sumProducts(const Operands &in) {
  Padding state = multiply(in[0], in[1]);
  in.visitReadCorners([&](llvm::function_ref<State(unsigned)> corner) {
    state = add(state, multiply(corner(0), corner(1)));
  });
  return state;
}

Padding MatmulOp::getResultPadding(const Operands &in) { return sumProducts(in); }

Padding LinearOp::getResultPadding(const Operands &in) {
  Padding state = sumProducts(in);
  return getBias() ? add(state, in[2]) : state;
}

/// Rows of x / sqrt(... + eps), and of a bias that may be added.
static Padding normalize(State input, const APFloat &eps, bool shifts) {
  if (!isFinite(input) || !(eps.convertToDouble() > 0))
    return Padding::Arbitrary;
  return isZero(input) && !shifts ? Padding::Zero : Padding::Finite;
}

static constexpr llvm::StringLiteral kCountsInNorm = "and would count it in the norm";

Padding RmsNormOp::getResultPadding(const Operands &in) {
  return normalize(in[0], getEps(), /*shifts=*/false);
}
std::optional<Need> RmsNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding LayerNormOp::getResultPadding(const Operands &in) {
  return normalize(in[0], getEps(), /*shifts=*/bool(getBias()));
}
std::optional<Need> LayerNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding RotaryOp::getResultPadding(const Operands &in) {
  return add(multiply(in[0], in[1]), multiply(in[0], in[2]));
}
Padding RotaryOp::getCornerPadding(const Operands &in) { return getResultPadding(in); }
std::optional<Need> RotaryOp::getPaddingNeed() {
  return Need{std::nullopt, "and would rotate it with the features"};
}

Padding AttentionOp::getResultPadding(const Operands &in) {
  State bias = getBias() ? in[getKeyPadding() ? 4 : 3] : State();
  if (!isFinite(in[0]) || !isFinite(in[1]) || !isFinite(in[2]) || !isMaskable(bias))
    return Padding::Arbitrary;
  return isZero(in[2]) ? Padding::Zero : Padding::Finite;
}

Padding AttentionOp::getCornerPadding(const Operands &in) {
  // Masks and positions do not enter the result, and a bias only hides.
  for (auto [i, operand] : llvm::enumerate(getOperands())) {
    State state = in.getOverall(i);
    if (operand == getBias() ? !isMaskable(state)
                             : isa<FloatType>(getElementTypeOrSelf(operand.getType())) &&
                                   !isFinite(state))
      return Padding::Arbitrary;
  }
  return Padding::Finite;
}

Padding MergeAttentionOp::getResultPadding(const Operands &in) {
  if (!isFinite(in[0]) || !isFinite(in[2]) || !isMaskable(in[1]) || !isMaskable(in[3]))
    return Padding::Arbitrary;
  return isZero(in[0]) && isZero(in[2]) ? Padding::Zero : Padding::Finite;
}

Padding MergeAttentionOp::getCornerPadding(const Operands &in) {
  bool isFiniteThere = isFinite(in.getOverall(0)) && isFinite(in.getOverall(2)) &&
                       isMaskable(in.getOverall(1)) && isMaskable(in.getOverall(3));
  return isFiniteThere ? Padding::Finite : Padding::Arbitrary;
}

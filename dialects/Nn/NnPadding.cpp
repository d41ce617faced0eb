//===- NnPadding.cpp - padding rules of ops -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Implements PaddingOpInterface: interval arithmetic, rounded to the type of the result.
//
// An op reads an operand by `in.getConditional` if its result is not finite wherever the
// operand is not: infinity plus, minus or times anything is infinity or NaN. It reads other
// operands by `in[i]`. The exponential of minus infinity, for example, is zero.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

static bool yieldsFloat(Operation *op) { return isa<FloatType>(elementOf(op->getResult(0))); }

/// Elements within an interval unless the operand is NaN, or infinite with
/// `needsFinite`.
static Padding within(const Padding &operand, Padding bound, bool needsFinite = false) {
  bound.mayBeNaN |= operand.mayBeNaN || (needsFinite && !isFinite(operand));
  return bound;
}

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

Padding NegOp::getResultPadding(const Operands &in) {
  return round(negate(in.getConditional(0)), elementOf(*this));
}

Padding StopGradientOp::getResultPadding(const Operands &in) { return in.getConditional(0); }

Padding AbsOp::getResultPadding(const Operands &in) {
  Padding content = in.getConditional(0), result = content;
  result.lower = content.lower > 0 ? content.lower : content.upper < 0 ? -content.upper : 0;
  result.upper = getMagnitude(content);
  return withRisingCondition(round(result, elementOf(*this)));
}

/// The content of an operand of a function that is plus infinity at plus infinity and NaN at NaN,
/// but finite at minus infinity. The condition must not allow the last.
static const Padding &getRising(const Operands &in, unsigned operand) {
  const Padding &content = in.getConditional(operand);
  return isConditionRising(content) ? content : in.getContents()[operand];
}

Padding ExpOp::getResultPadding(const Operands &in) {
  return mapRising(getRising(in, 0), [](double x) { return std::exp(x); }, elementOf(*this));
}

/// The values of a function of numbers that are not negative; others give NaN. Infinities of both
/// signs give plus infinity or NaN.
static Padding mapNonNegative(const Padding &content, llvm::function_ref<double(double)> map,
                              Type type) {
  Padding result =
      mapRising(content, [&](double x) { return map(std::max(x, 0.0)); }, type);
  result.mayBeNaN |= content.lower < 0;
  return withRisingCondition(result);
}

Padding LogOp::getResultPadding(const Operands &in) {
  return mapNonNegative(
      in.getConditional(0), [](double x) { return std::log(x); }, elementOf(*this));
}

Padding SqrtOp::getResultPadding(const Operands &in) {
  return mapNonNegative(in.getConditional(0), [](double x) { return std::sqrt(x); },
                        elementOf(*this));
}

Padding RsqrtOp::getResultPadding(const Operands &in) {
  Padding root =
      mapNonNegative(in[0], [](double x) { return std::sqrt(x); }, elementOf(*this));
  return divide({1, 1}, root, elementOf(*this));
}

Padding ReciprocalOp::getResultPadding(const Operands &in) {
  return divide({1, 1}, in[0], elementOf(*this));
}

Padding SinOp::getResultPadding(const Operands &in) {
  return isZero(in[0]) ? Padding::Zero
                       : within(in[0], around(1, elementOf(*this)), /*needsFinite=*/true);
}

Padding CosOp::getResultPadding(const Operands &in) {
  return within(in[0], around(1, elementOf(*this)), /*needsFinite=*/true);
}

Padding TanhOp::getResultPadding(const Operands &in) {
  return mapRising(in[0], [](double x) { return std::tanh(x); }, elementOf(*this));
}

Padding ErfOp::getResultPadding(const Operands &in) {
  return mapRising(in[0], [](double x) { return std::erf(x); }, elementOf(*this));
}

Padding SigmoidOp::getResultPadding(const Operands &in) {
  return mapRising(in[0], [](double x) { return 1 / (1 + std::exp(-x)); }, elementOf(*this));
}

Padding FloorOp::getResultPadding(const Operands &in) {
  return mapRising(in.getConditional(0), [](double x) { return std::floor(x); }, elementOf(*this));
}

Padding NotOp::getResultPadding(const Operands &in) { return {1 - in[0].upper, 1 - in[0].lower}; }

Padding ReluOp::getResultPadding(const Operands &in) {
  return mapRising(getRising(in, 0), [](double x) { return std::max(x, 0.0); }, elementOf(*this));
}

/// x times a number between 0 and 1 that falls with x faster than 1 / x, so that the product
/// is above `least`. It is computed as a product, so minus infinity gives NaN, and the
/// condition rises.
static Padding gate(const Padding &content, double least, Type type) {
  if (isZero(content))
    return content;
  Padding result = content;
  result.lower = content.lower < 0 ? least : 0;
  result.upper = std::max(content.upper, 0.0);
  result.mayBeNaN |= content.lower == -kInfinity;
  return withRisingCondition(round(result, type));
}
Padding SiluOp::getResultPadding(const Operands &in) {
  return gate(in.getConditional(0), -0.3, elementOf(*this));
}
Padding GeluOp::getResultPadding(const Operands &in) {
  return gate(in.getConditional(0), -0.2, elementOf(*this));
}

Padding AddOp::getResultPadding(const Operands &in) {
  return add(in.getConditional(0), in.getConditional(1), elementOf(*this));
}

Padding SubOp::getResultPadding(const Operands &in) {
  // Minus infinity less a maximum of the row is minus infinity, unless the maximum is minus
  // infinity or NaN. Then each true difference is plus infinity or NaN.
  if (uint32_t event = in.getSharedEvent(1, "lowest"); in[0] == Padding::NegInf && event)
    return withRisingCondition({in[0].lower, in[0].upper, false, event});
  return add(in.getConditional(0), negate(in.getConditional(1)), elementOf(*this));
}

Padding MulOp::getResultPadding(const Operands &in) {
  Padding product = multiply(in.getConditional(0), in.getConditional(1), elementOf(*this));
  if (getLhs() == getRhs() && yieldsFloat(*this)) {
    product.lower = std::max(product.lower, 0.0);
    product = withRisingCondition(product);
  }
  return product;
}

Padding DivOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this);
  if (!yieldsFloat(*this)) {
    // A division by zero gives zero.
    double most = getMagnitude(in[0]);
    return round({-most, most}, type);
  }
  Padding lhs = in.getConditional(0), rhs = in[1];
  // Where one event makes both infinite or NaN, each true quotient is NaN or infinite, too.
  if (const Padding &divisor = in.getConditional(1);
      divisor.cause && isSameEvent(lhs.cause, divisor.cause))
    rhs = divisor;
  Padding quotient = divide(lhs, rhs, type);
  // Zero divided by a value is NaN only where the value is zero or NaN. If it is the same
  // beside the padding, each true quotient is infinite or NaN there.
  if (uint32_t event = in.getSharedEvent(1, "divisor");
      isZero(lhs) && !isZero(quotient) && event)
    return {0, 0, false, joinCauses(lhs.cause, event)};
  return quotient;
}

Padding RemOp::getResultPadding(const Operands &in) {
  Padding bound = around(getMagnitude(in[1]), elementOf(*this));
  if (isZero(in[0]))
    bound = Padding::Zero;
  bool isNumber = isFinite(in[0]) && !in[1].mayBeNaN && (in[1].lower > 0 || in[1].upper < 0);
  bound.mayBeNaN = yieldsFloat(*this) && !isNumber;
  return bound;
}

/// x to a positive integer power.
static Padding raise(const Padding &base, double exponent, Type type) {
  auto power = [&](double x) { return std::pow(x, exponent); };
  if (std::fmod(exponent, 2) == 1 || base.lower >= 0)
    return mapRising(base, power, type);
  Padding result = base;
  result.lower = base.upper < 0 ? power(base.upper) : 0;
  result.upper = power(getMagnitude(base));
  return withRisingCondition(round(result, type));
}

Padding PowOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this);
  Padding exponent = in[1];
  bool isKnown = exponent.lower == exponent.upper && isFinite(exponent);
  if (isKnown && exponent.lower == 0)
    return {1, 1};
  if (isKnown) {
    double power = std::fabs(exponent.lower);
    Padding base = exponent.lower > 0 ? in.getConditional(0) : in[0];
    Padding result =
        std::floor(power) == power
            ? raise(base, power, type)
            : mapNonNegative(base, [&](double x) { return std::pow(x, power); }, type);
    return exponent.lower > 0 ? result : divide({1, 1}, result, type);
  }
  if (!isFinite(in[0]) || !isFinite(exponent) || !(in[0].lower > 0))
    return Padding::Arbitrary;
  Padding logarithm = mapRising(in[0], [](double x) { return std::log(x); }, type);
  return mapRising(multiply(logarithm, exponent, type), [](double x) { return std::exp(x); },
                   type);
}

static Padding maximum(const Padding &a, const Padding &b) {
  return {std::max(a.lower, b.lower), std::max(a.upper, b.upper), a.mayBeNaN || b.mayBeNaN,
          joinCauses(a.cause, b.cause)};
}

Padding MaximumOp::getResultPadding(const Operands &in) {
  return maximum(getRising(in, 0), getRising(in, 1));
}

Padding MinimumOp::getResultPadding(const Operands &in) {
  return negate(maximum(negate(in[0]), negate(in[1])));
}

static bool isTruthValue(Operation *op) { return elementOf(op->getResult(0)).isInteger(1); }

/// The values of an op on the bits of integers: a result has no more bits than the larger operand.
static Padding combineBits(const Padding &a, const Padding &b, Type type) {
  double magnitude = std::max(getMagnitude(a), getMagnitude(b)), size = 1;
  while (size <= magnitude && std::isfinite(size))
    size *= 2;
  return round({a.lower < 0 || b.lower < 0 ? -size : 0, size - 1}, type);
}

Padding AndOp::getResultPadding(const Operands &in) {
  if (isTruthValue(*this))
    return {std::min(in[0].lower, in[1].lower), std::min(in[0].upper, in[1].upper)};
  // A number that is not negative clears all bits above its own.
  for (unsigned i : {0, 1})
    if (in[i].lower >= 0)
      return {0, in[1 - i].lower >= 0 ? std::min(in[0].upper, in[1].upper) : in[i].upper};
  return combineBits(in[0], in[1], elementOf(*this));
}

Padding OrOp::getResultPadding(const Operands &in) {
  return isTruthValue(*this) ? maximum(in[0], in[1]) : combineBits(in[0], in[1], elementOf(*this));
}

Padding XorOp::getResultPadding(const Operands &in) {
  if (!isTruthValue(*this))
    return combineBits(in[0], in[1], elementOf(*this));
  bool isKnown = in[0].lower == in[0].upper && in[1].lower == in[1].upper;
  if (!isKnown)
    return {0, 1};
  return ofConstant(in[0].lower != in[1].lower ? 1 : 0);
}

/// The bound on x < y, or on x <= y with `orEqual`: {1, 1} if it always holds, {0, 0} if never.
static Padding isBelow(const Padding &x, const Padding &y, bool orEqual) {
  bool always = orEqual ? x.upper <= y.lower : x.upper < y.lower;
  bool never = orEqual ? x.lower > y.upper : x.lower >= y.upper;
  // A comparison with NaN is false.
  if (always && !x.mayBeNaN && !y.mayBeNaN)
    return {1, 1};
  return never ? Padding::Zero : Padding{0, 1};
}

Padding CompareOp::getResultPadding(const Operands &in) {
  switch (getKind()) {
  case CompareKind::Lt:
    return isBelow(in[0], in[1], false);
  case CompareKind::Le:
    return isBelow(in[0], in[1], true);
  case CompareKind::Gt:
    return isBelow(in[1], in[0], false);
  case CompareKind::Ge:
    return isBelow(in[1], in[0], true);
  case CompareKind::Eq:
  case CompareKind::Ne:
    break;
  }
  bool isEq = getKind() == CompareKind::Eq;
  bool mayBeNaN = in[0].mayBeNaN || in[1].mayBeNaN;
  if (in[0].upper < in[1].lower || in[1].upper < in[0].lower)
    return ofConstant(isEq ? 0 : 1);
  bool isSame = in[0].lower == in[0].upper && in[0] == in[1];
  return isSame && !mayBeNaN ? ofConstant(isEq ? 1 : 0) : Padding{0, 1};
}

Padding SelectOp::getResultPadding(const Operands &in) {
  auto choose = [&](const Padding &a, const Padding &b) {
    return in[0].lower == 1 ? a : in[0].upper == 0 ? b : meet(a, b);
  };
  // Where one event makes both branches infinite or NaN, each true element is, too.
  const Padding &a = in.getConditional(1), &b = in.getConditional(2);
  if (!a.cause || !isSameEvent(a.cause, b.cause))
    return choose(in[1], in[2]);
  Padding content = choose(a, b);
  content.cause = joinCauses(a.cause, b.cause);
  return content;
}

/// A dropped element is zero where its operand is not finite, too.
Padding DropoutOp::getResultPadding(const Operands &in) {
  Padding scale = ofConstant(1 / (1 - getProbability().convertToDouble()));
  return meet(multiply(in[0], scale, elementOf(*this)), Padding::Zero);
}

Padding CastOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this);
  if (yieldsFloat(*this))
    return round(in.getConditional(0), type);
  Padding content = in[0];
  if (type.isInteger(1)) {
    bool isNonzero = content.lower > 0 || content.upper < 0;
    return isNonzero ? Padding{1, 1} : isZero(content) ? Padding::Zero : Padding{0, 1};
  }
  // A float is rounded toward zero.
  return round({std::trunc(content.lower), std::trunc(content.upper), content.mayBeNaN}, type);
}

//===----------------------------------------------------------------------===//
// Constants and shapes
//===----------------------------------------------------------------------===//

/// The bound on the elements of a constant.
static Padding boundElements(DenseElementsAttr elements) {
  Padding content{kInfinity, -kInfinity};
  // The elements of a splat are one, however many they are.
  if (elements.isSplat() && elements.getNumElements() > 1)
    elements = elements.resizeSplat(RankedTensorType::get({}, elements.getElementType()));
  if (auto numbers = dyn_cast<DenseFPElementsAttr>(elements)) {
    for (const APFloat &number : numbers) {
      if (number.isNaN())
        return Padding::Arbitrary;
      APFloat wide = number;
      bool losesInfo;
      wide.convert(APFloat::IEEEdouble(), APFloat::rmNearestTiesToEven, &losesInfo);
      content = meet(content, ofConstant(wide.convertToDouble()));
    }
    return content;
  }
  bool isTruth = elements.getElementType().isInteger(1);
  for (const APInt &number : elements.getValues<APInt>())
    content = meet(content, ofConstant(isTruth ? number.getZExtValue()
                                           : double(number.getSExtValue())));
  return content;
}

Padding ConstantOp::getResultPadding(const Operands &) {
  auto elements = dyn_cast<DenseElementsAttr>(getValue());
  return elements ? boundElements(elements) : ofType(elementOf(*this));
}

Padding IotaOp::getResultPadding(const Operands &) {
  return round({0, double(getType().getDimSize(getDim()) - 1)}, elementOf(*this));
}

Padding ReshapeOp::getResultPadding(const Operands &in) { return in.getConditional(0); }
Padding CutOp::getResultPadding(const Operands &in) { return in.getConditional(0); }
Padding UncutOp::getResultPadding(const Operands &in) { return in.getConditional(0); }
Padding TransposeOp::getResultPadding(const Operands &in) { return in.getConditional(0); }
Padding SliceOp::getResultPadding(const Operands &in) { return in.getConditional(0); }
Padding BroadcastOp::getResultPadding(const Operands &in) { return in.getConditional(0); }

Padding ConcatOp::getResultPadding(const Operands &in) {
  Padding content = in[0];
  for (const Padding &other : in.getContents())
    content = meet(content, other);
  return content;
}

/// The elements that an op reads by index from operand `table`: any of them may stand where the
/// indices are padding.
static Padding lookUp(const Operands &in, unsigned table) {
  return in.isPaddingOf(table) ? in[table] : in.getOverall(table);
}
Padding GatherOp::getResultPadding(const Operands &in) { return lookUp(in, 0); }
Padding TakeAlongOp::getResultPadding(const Operands &in) { return lookUp(in, 0); }
Padding EmbeddingOp::getResultPadding(const Operands &in) {
  // An id outside the rows of a rank gives zeros.
  Padding content = lookUp(in, 1);
  return getOffset() ? meet(content, Padding::Zero) : content;
}

Padding IndexCopyOp::getResultPadding(const Operands &in) {
  return meet(in[0], in[2]);
}

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

Padding ReduceOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this);
  switch (getKind()) {
  case ReduceKind::Sum:
    return round(sum(ofRow(in, in.getConditional(0)), in.getReadCount(), getComputeType(type)), type);
  case ReduceKind::Mean: {
    Padding row = ofRow(in, in.getConditional(0));
    Padding total = sum(row, in.getReadCount(), getComputeType(type));
    return isFinite(total) ? row : total;
  }
  case ReduceKind::Max: {
    // At least one element is true. Elements of padding are minus infinity.
    Padding row = ofRow(in, in[0]);
    return {in[0].lower, row.upper, row.mayBeNaN};
  }
  case ReduceKind::Min:
    return ofRow(in, in[0]);
  }
  llvm_unreachable("unknown reduction");
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
  Type type = elementOf(*this);
  Padding row = in.isAlongResult(getDim()) ? in.getOverall(0) : ofRow(in, in.getConditional(0));
  return round(sum(row, in.getReadCount(), getComputeType(type)), type);
}

Padding SoftmaxOp::getResultPadding(const Operands &in) {
  // Elements between 0 and 1. A row of minus infinity gives zeros.
  bool isTail = in.isAlongResult(getDim());
  Padding row = isTail ? in.getOverall(0) : ofRow(in, in[0]);
  Padding result = round({0, 1}, elementOf(*this));
  if (in[0] == Padding::NegInf && (isTail || row.upper == -kInfinity))
    result = Padding::Zero;
  if (isMaskable(row))
    return result;
  // A row with infinity or NaN is NaN, in padding too.
  if (uint32_t event = isTail && isZero(result) ? in.getEvent(0, "softmax") : 0)
    return {0, 0, false, event};
  result.mayBeNaN = true;
  return result;
}

std::optional<Need> SoftmaxOp::getPaddingNeed() {
  return Need{Padding::NegInf, "expected minus infinity"};
}

/// The program computes its expansion. An exponential of a difference of logits, and the
/// logarithm of a sum of them, have no bound that intervals show.
Padding CrossEntropyOp::getResultPadding(const Operands &) { return Padding::Arbitrary; }

std::optional<Need> CrossEntropyOp::getPaddingNeed() {
  return Need{std::nullopt, "and would count it as a class"};
}

//===- Padding.cpp - the content of padding -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Padding.h"

#include "meshwright/dialects/Dist/Events.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/APFloat.h"

#include <algorithm>
#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::padding;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool padding::isZero(const Padding &content) {
  return content.lower == 0 && content.upper == 0 && !content.mayBeNaN;
}

bool padding::isFinite(const Padding &content) {
  return std::isfinite(content.lower) && std::isfinite(content.upper) && !content.mayBeNaN;
}

bool padding::isWithin(const Padding &content, const Padding &bound) {
  return !content.cause && content.lower >= bound.lower && content.upper <= bound.upper &&
         (bound.mayBeNaN || !content.mayBeNaN);
}

bool padding::isMaskable(const Padding &content) {
  return !content.mayBeNaN && content.upper < kInfinity;
}

Padding padding::getUnconditional(const Padding &content) {
  return content.cause ? Padding::Arbitrary : content;
}

bool padding::isConditionRising(const Padding &content) {
  return content.cause && !(content.cause & 1);
}

/// The same content of a result that may be minus infinity, too, where the condition fails.
static Padding withAnySign(Padding content) {
  if (content.cause)
    content.cause |= 1;
  return content;
}

uint32_t padding::joinCauses(uint32_t a, uint32_t b) {
  if (!a || !b)
    return a ? a : b;
  return isSameEvent(a, b) ? a | b : EventTable::getCurrent().join(a, b);
}

Padding padding::withRisingCondition(Padding content) {
  content.cause &= ~1u;
  return content;
}

Padding padding::meet(const Padding &a, const Padding &b) {
  return {std::min(a.lower, b.lower), std::max(a.upper, b.upper), a.mayBeNaN || b.mayBeNaN,
          joinCauses(a.cause, b.cause)};
}

Padding padding::ofConstant(double value) {
  return std::isnan(value) ? Padding::Arbitrary : Padding{value, value};
}

namespace {
/// The largest and the smallest normal number of a type. Bounds are rounded by them so often
/// that those of usual types are computed once.
struct FloatRange {
  explicit FloatRange(const llvm::fltSemantics &semantics)
      : largest(APFloat::getLargest(semantics).convertToDouble()),
        smallest(APFloat::getSmallestNormalized(semantics).convertToDouble()) {}
  double largest, smallest;
};
} // namespace

static FloatRange getRange(FloatType type) {
  static const FloatRange single(APFloat::IEEEsingle()), full(APFloat::IEEEdouble()),
      brain(APFloat::BFloat());
  const llvm::fltSemantics &semantics = type.getFloatSemantics();
  return &semantics == &APFloat::IEEEsingle()   ? single
         : &semantics == &APFloat::IEEEdouble() ? full
         : &semantics == &APFloat::BFloat()     ? brain
                                                : FloatRange(semantics);
}

/// Returns true if the type has the number.
static bool represents(FloatType type, double number) {
  if (type.isF64() || (type.isF32() && double(float(number)) == number))
    return true;
  APFloat converted(number);
  bool losesInfo = false;
  converted.convert(type.getFloatSemantics(), APFloat::rmNearestTiesToEven, &losesInfo);
  return !losesInfo;
}

double padding::getLargest(Type type) { return getRange(cast<FloatType>(type)).largest; }

Padding padding::finiteOf(Type type) {
  if (!isa<FloatType>(type))
    return ofType(type);
  return {-getLargest(type), getLargest(type)};
}

Padding padding::ofType(Type type) {
  if (isa<FloatType>(type))
    return Padding::Arbitrary;
  if (type.isInteger(1))
    return {0, 1};
  double half = std::ldexp(1.0, type.isIndex() ? 63 : type.getIntOrFloatBitWidth() - 1);
  return {-half, half};
}

llvm::StringRef padding::toString(const Padding &content) {
  if (content.mayBeNaN || content.upper == kInfinity)
    return "arbitrary";
  if (isZero(content))
    return "zero";
  if (content.upper == -kInfinity)
    return "minus infinity";
  if (content.lower == -kInfinity)
    return "finite or minus infinity";
  return content.lower > 0 ? "positive" : content.lower == 0 ? "not negative" : "finite";
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

/// Rounds a bound away from the interval: down with `direction` -1, up with 1.
static double roundBound(double bound, int direction, FloatType type) {
  if (bound == 0 || std::isinf(bound))
    return bound;
  auto [largest, smallest] = getRange(type);
  // A result near zero may become zero.
  if (std::fabs(bound) < smallest)
    return (bound > 0) == (direction > 0) ? std::copysign(smallest, bound) : 0;
  // More than the error of any type, and of an approximation.
  if (std::fabs(bound) <= largest && !represents(type, bound))
    bound += direction * std::fabs(bound) / 64;
  if (std::fabs(bound) <= largest)
    return bound;
  if ((bound > 0) == (direction > 0))
    return std::copysign(kInfinity, bound);
  return std::copysign(largest, bound);
}

Padding padding::round(Padding exact, Type type) {
  auto number = dyn_cast<FloatType>(type);
  if (!number) {
    Padding all = ofType(type);
    bool wraps = exact.mayBeNaN || !(exact.lower >= all.lower && exact.upper <= all.upper);
    return wraps ? all : Padding{exact.lower, exact.upper};
  }
  exact.lower = roundBound(exact.lower, -1, number);
  exact.upper = roundBound(exact.upper, 1, number);
  return exact;
}

static bool containsZero(const Padding &a) { return a.lower <= 0 && a.upper >= 0; }
static bool mayBeInfinite(const Padding &a) {
  return a.lower == -kInfinity || a.upper == kInfinity;
}

Padding padding::add(const Padding &a, const Padding &b, Type type) {
  Padding result = meet(a, b);
  result.mayBeNaN |= (a.lower == -kInfinity && b.upper == kInfinity) ||
                     (a.upper == kInfinity && b.lower == -kInfinity);
  auto bound = [](double x, double y, double opposite) {
    return std::isnan(x + y) ? opposite : x + y;
  };
  result.lower = bound(a.lower, b.lower, -kInfinity);
  result.upper = bound(a.upper, b.upper, kInfinity);
  return round(result, type);
}

Padding padding::negate(const Padding &a) {
  return withAnySign({-a.upper, -a.lower, a.mayBeNaN, a.cause});
}

/// The hull of a function that is monotone in each of two arguments.
static void setHull(Padding &result, const Padding &a, const Padding &b,
                    llvm::function_ref<double(double, double)> map) {
  result.lower = kInfinity;
  result.upper = -kInfinity;
  for (double x : {a.lower, a.upper})
    for (double y : {b.lower, b.upper}) {
      result.lower = std::min(result.lower, map(x, y));
      result.upper = std::max(result.upper, map(x, y));
    }
}

Padding padding::multiply(const Padding &a, const Padding &b, Type type) {
  Padding result = withAnySign(meet(a, b));
  result.mayBeNaN |=
      (containsZero(a) && mayBeInfinite(b)) || (containsZero(b) && mayBeInfinite(a));
  setHull(result, a, b, [](double x, double y) { return x == 0 || y == 0 ? 0.0 : x * y; });
  return round(result, type);
}

Padding padding::divide(const Padding &a, const Padding &b, Type type) {
  Padding result = withAnySign(meet(a, b));
  if (containsZero(b)) {
    result.mayBeNaN |= containsZero(a) || (mayBeInfinite(a) && mayBeInfinite(b));
    result.lower = -kInfinity;
    result.upper = kInfinity;
    return result;
  }
  result.mayBeNaN |= mayBeInfinite(a) && mayBeInfinite(b);
  setHull(result, a, b, [](double x, double y) {
    return x == 0 || std::isinf(y) ? 0.0 : x / y;
  });
  // An infinite quotient of an infinite divisor is NaN, which the hull leaves out.
  if (mayBeInfinite(a) && mayBeInfinite(b))
    return Padding::Arbitrary;
  return round(result, type);
}

Padding padding::sum(const Padding &a, int64_t count, Type type) {
  Padding result = a;
  result.lower = std::min(a.lower * count, a.lower);
  result.upper = std::max(a.upper * count, a.upper);
  result.mayBeNaN |= a.lower == -kInfinity && a.upper == kInfinity;
  result = round(result, type);
  // Parts of the sum may overflow both ways.
  result.mayBeNaN |= result.lower == -kInfinity && result.upper == kInfinity;
  return result;
}

Padding padding::mapRising(const Padding &a, llvm::function_ref<double(double)> map, Type type) {
  Padding result = a;
  result.lower = map(a.lower);
  result.upper = map(a.upper);
  return round(result, type);
}

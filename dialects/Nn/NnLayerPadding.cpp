//===- NnLayerPadding.cpp - padding rules of layers -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products, norms and attention (see NnPadding.cpp).
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

Padding MatmulOp::getResultPadding(const Operands &in) { return sumProducts(*this, in); }

Padding LinearOp::getResultPadding(const Operands &in) {
  Padding state = sumProducts(*this, in);
  return getBias() ? add(state, in.getConditional(2), typeOf(*this)) : state;
}

/// Rows divided by their root mean square: no element is larger than the root of their
/// number. An overflow of the squares gives zeros.
static Padding normalize(const Operands &in, const APFloat &eps, Type type) {
  double least = std::ldexp(1.0, -126);
  if (!isFinite(in[0]) || !(eps.convertToDouble() > least))
    return Padding::Arbitrary;
  return isZero(in[0]) ? Padding::Zero : around(std::sqrt(double(in.getReadCount())), type);
}

static constexpr llvm::StringLiteral kCountsInNorm = "and would count it in the norm";

Padding RmsNormOp::getResultPadding(const Operands &in) {
  Type type = typeOf(*this), wide = getSumType(type);
  Padding state = normalize(in, getEps(), wide);
  if (getWeight())
    state = multiply(state, getUnitOffset() ? add(in[1], {1, 1}, wide) : in[1], wide);
  return round(state, type);
}
std::optional<Need> RmsNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding LayerNormOp::getResultPadding(const Operands &in) {
  Type type = typeOf(*this), wide = getSumType(type);
  // The mean overflows where its sum does.
  if (!isFinite(sum(around(2 * getMagnitude(in[0]), wide), in.getReadCount(), wide)))
    return Padding::Arbitrary;
  Padding state = normalize(in, getEps(), wide);
  unsigned next = 1;
  if (getWeight())
    state = multiply(state, in[next++], wide);
  if (getBias())
    state = add(state, in[next], wide);
  return round(state, type);
}
std::optional<Need> LayerNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding RotaryOp::getResultPadding(const Operands &in) {
  Type type = typeOf(*this), wide = getSumType(type);
  Padding x = in.getConditional(0);
  // Features behind the rotated ones stay as they are.
  Padding rotated = add(multiply(x, in.getConditional(1), wide),
                        multiply(meet(x, negate(x)), in.getConditional(2), wide), wide);
  return round(meet(rotated, x), type);
}
std::optional<Need> RotaryOp::getPaddingNeed() {
  return Need{std::nullopt, "and would rotate it with the features"};
}

/// A mean of values. Its rounding is small against them.
static Padding average(const Padding &values, Type type) {
  Padding result = values;
  double largest = getLargest(type);
  result.lower = std::max(std::min(values.lower * 2, values.lower), -largest);
  result.upper = std::min(std::max(values.upper * 2, values.upper), largest);
  return round(result, type);
}

/// The condition of a log-sum-exp: that of its mean of values, unless it always holds.
static uint32_t getPartCause(uint32_t own, const Padding &mean) {
  return own && mean.cause ? mean.cause | 1 : own;
}

/// The log-sum-exp of so many numbers up to `upper`, minus infinity where there is none. From
/// 2^30 on another number may stand for it (see the op). Its condition only tells that the
/// mean beside it is not finite: a key may be hidden by a score of minus infinity. The lower
/// bound keeps it from sums.
static Padding sumExponentials(double upper, int64_t count, uint32_t cause, Type type) {
  Padding bound = std::fabs(upper) < std::ldexp(1.0, 30)
                      ? round({0, std::max(upper + std::log(2.0 * count), 0.0)}, type)
                      : finiteOf(type);
  return {-kInfinity, bound.upper, false, cause};
}

/// Attention is a mean of values if its scores are finite. Its log-sum-exp reads no values. For
/// conditional operands:
/// - A query that is not finite has scores that are not, for each key. The softmax of such
///   a row is NaN.
/// - A value that is not finite counts with a weight of zero, too: zero times infinity is
///   NaN.
/// - A key that is not finite may have a score of minus infinity, which hides it. Its value
///   is not finite for the same reason, if both have the same condition. Keys that heads of
///   a group share give each true head of the group scores that are not finite.
/// Masks hide some keys from some queries, so none of this holds in padding of the queries.
Padding AttentionOp::getResultPadding(const Operands &in) {
  Type type = typeOf(*this), wide = getSumType(type);
  Padding query = in.getConditional(0), key = in.getConditional(1), value = in.getConditional(2);
  if (in.isAlongResult(2)) {
    query = in[0];
    key = in[1];
    value = in[2];
  }
  if (in.isPaddingOf(1) && key.cause && !isSameEvent(key.cause, value.cause))
    key = Padding::Arbitrary;
  int64_t features = getQuery().getType().getShape().back();
  double scale = getScale().convertToDouble();
  Padding scores = sum(multiply(query, key, wide), features, wide);
  scores = multiply(scores, ofConstant(scale), wide);
  uint32_t cause = scores.cause;
  bool areNumbers = isFinite(scores);
  // A capped score is nearer to zero.
  Padding seen = getSoftCap() ? meet(scores, Padding::Zero) : scores;
  if (getBias()) {
    Padding bias = in[getKeyPadding() ? 4 : 3];
    seen = add(seen, bias, wide);
    areNumbers &= isMaskable(bias) && isMaskable(seen);
  }
  if (!areNumbers)
    return Padding::Arbitrary;
  Padding result = Padding::Arbitrary;
  if (isFinite(value)) {
    // A query that sees no key gives zeros.
    result = meet(value, Padding::Zero);
    result.cause = joinCauses(cause, value.cause);
    result = average(result, type);
  }
  if (in.getResult() == 0)
    return result;
  int64_t keys = getKey().getType().getShape()[2];
  return sumExponentials(seen.upper, keys, getPartCause(cause, result),
                         getElementTypeOrSelf(getLse().getType()));
}

/// Zero where the cotangent is, if all else is finite: probabilities are at most 1. Nothing else is
/// known. Masks hide some elements from some others, so no state is conditional.
Padding AttentionGradOp::getResultPadding(const Operands &in) {
  bool areNumbers = isZero(in[0]) && isMaskable(in[5]);
  for (unsigned operand : {1, 2, 3, 4})
    areNumbers &= isFinite(in[operand]);
  if (getBias())
    areNumbers &= isMaskable(in[getKeyPadding() ? 7 : 6]);
  return areNumbers ? Padding::Zero : Padding::Arbitrary;
}

/// A part that is not finite counts with a weight of zero, too. A log-sum-exp has the
/// condition of its part.
Padding MergeAttentionOp::getResultPadding(const Operands &in) {
  Padding result{0, 0}, lse = Padding::NegInf;
  bool isMean = true;
  for (unsigned part : {0, 2}) {
    Padding out = in.getConditional(part), own = in.getConditional(part + 1);
    lse = meet(lse, own);
    isMean &= isFinite(out) && isMaskable(own) && (!own.cause || isSameEvent(own.cause, out.cause));
    result = meet(result, out);
  }
  result = isMean ? average(result, typeOf(*this)) : Padding::Arbitrary;
  if (in.getResult() == 0)
    return result;
  if (!isMaskable(lse))
    return Padding::Arbitrary;
  return sumExponentials(lse.upper, /*count=*/2,
                         getPartCause(lse.cause, result),
                         getElementTypeOrSelf(getLse().getType()));
}

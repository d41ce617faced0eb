//===- NnLayerPadding.cpp - padding rules of layers -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products and norms (see NnPadding.cpp).
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

Padding MatmulOp::getResultPadding(const Operands &in) { return sumProducts(*this, in); }

Padding LinearOp::getResultPadding(const Operands &in) {
  Padding content = sumProducts(*this, in);
  return getBias() ? add(content, in.getConditional(2), elementOf(*this)) : content;
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
  Type type = elementOf(*this), wide = getComputeType(type);
  Padding content = normalize(in, getEps(), wide);
  if (getWeight())
    content = multiply(content, getUnitOffset() ? add(in[1], {1, 1}, wide) : in[1], wide);
  return round(content, type);
}
std::optional<Need> RmsNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding LayerNormOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this), wide = getComputeType(type);
  // The mean overflows where its sum does.
  if (!isFinite(sum(around(2 * getMagnitude(in[0]), wide), in.getReadCount(), wide)))
    return Padding::Arbitrary;
  Padding content = normalize(in, getEps(), wide);
  unsigned next = 1;
  if (getWeight())
    content = multiply(content, in[next++], wide);
  if (getBias())
    content = add(content, in[next], wide);
  return round(content, type);
}
std::optional<Need> LayerNormOp::getPaddingNeed() { return Need{std::nullopt, kCountsInNorm}; }

Padding RotaryOp::getResultPadding(const Operands &in) {
  Type type = elementOf(*this), wide = getComputeType(type);
  Padding x = in.getConditional(0);
  // Features behind the rotated ones stay as they are.
  Padding rotated = add(multiply(x, in.getConditional(1), wide),
                        multiply(meet(x, negate(x)), in.getConditional(2), wide), wide);
  return round(meet(rotated, x), type);
}
std::optional<Need> RotaryOp::getPaddingNeed() {
  return Need{std::nullopt, "and would rotate it with the features"};
}

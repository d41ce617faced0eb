//===- AttentionScores.cpp - arithmetic of attention's scores -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/AttentionScores.h"

#include "meshwright/lib/Codegen/Elements.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>

using namespace mlir;

namespace meshwright::lower {

/// Coefficients of 2^x for |x| <= 1/2, x^0 first.
static SmallVector<double> getExp2Polynomial(bool isDouble) {
  // The smallest relative error that degree 6 has: 1.9e-9.
  if (!isDouble)
    return {1.0,
            0.6931471824645996,
            0.24022646248340607,
            0.05550328642129898,
            0.009618489071726799,
            0.0013399934396147728,
            0.00015345819701906294};
  SmallVector<double> coefficients{1.0};
  for (int64_t i = 1; i <= 13; ++i)
    coefficients.push_back(coefficients.back() * M_LN2 / i);
  return coefficients;
}

Value emitExp2(ImplicitLocOpBuilder &b, Value x) {
  Type type = x.getType();
  auto getSplat = [&](double value) { return emitConstant(b, type, value); };
  bool isDouble = getElementTypeOrSelf(type).isF64();
  int64_t mantissa = isDouble ? 52 : 23;
  // The sum has the nearest integer in the last bits of its mantissa.
  Value magic = getSplat(1.5 * std::ldexp(1.0, mantissa));
  Value biased = arith::AddFOp::create(b, x, magic);
  Value rest = arith::SubFOp::create(b, x, arith::SubFOp::create(b, biased, magic));
  SmallVector<double> coefficients = getExp2Polynomial(isDouble);
  Value power = getSplat(coefficients.back());
  for (double coefficient : llvm::reverse(ArrayRef(coefficients).drop_back()))
    power = LLVM::FMulAddOp::create(b, power, rest, getSplat(coefficient));
  // The shift moves the integer to the exponent, and all other bits out.
  Type bits = b.getIntegerType(isDouble ? 64 : 32);
  if (auto vector = dyn_cast<VectorType>(type))
    bits = vector.clone(bits);
  Value exponent = arith::ShLIOp::create(b, arith::BitcastOp::create(b, bits, biased),
                                         emitConstant(b, bits, mantissa));
  Value scaled = arith::AddIOp::create(b, arith::BitcastOp::create(b, bits, power), exponent);
  Value value = arith::BitcastOp::create(b, type, scaled);
  // Small results become zero. A NaN remains NaN; the last bits of its mantissa, as an exponent,
  // would make it a number.
  Value zero = getSplat(0);
  Value isNegative = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x, zero);
  Value instead = arith::SelectOp::create(b, isNegative, zero, x);
  Value isOutside =
      arith::CmpFOp::create(b, arith::CmpFPredicate::ULT, x, getSplat(isDouble ? -1021.5 : -125.5));
  return arith::SelectOp::create(b, isOutside, instead, value);
}

double getScoreUnit(nn::ScoresOpInterface op) { return op.getBias() ? 1.0 : M_LOG2E; }

double getScoreFactor(nn::ScoresOpInterface op) {
  double scale = op.getScale().convertToDouble();
  if (auto cap = op.getSoftCap())
    return scale / cap->convertToDouble();
  return scale * getScoreUnit(op);
}

Value emitSoftCap(ImplicitLocOpBuilder &b, nn::ScoresOpInterface op, Value scores) {
  auto cap = op.getSoftCap();
  return cap ? emitSoftCap(b, cap->convertToDouble(), getScoreUnit(op), scores) : scores;
}

Value emitSoftCap(ImplicitLocOpBuilder &b, double cap, double unit, Value scores) {
  auto constant = [&](double value) { return emitConstant(b, scores.getType(), value); };
  Value bounded;
  if (getElementTypeOrSelf(scores.getType()).isF64()) {
    // tanh x = 1 - 2 / (e^2x + 1). The C library's function computes one lane at a time.
    Value limit = constant(40);
    Value below = arith::MinimumFOp::create(b, scores, limit);
    below = arith::MaximumFOp::create(b, below, constant(-40));
    Value power = emitExp2(b, arith::MulFOp::create(b, below, constant(2 * M_LOG2E)));
    Value divisor = arith::AddFOp::create(b, power, constant(1));
    bounded = arith::SubFOp::create(b, constant(1), arith::DivFOp::create(b, constant(2), divisor));
  } else {
    bounded = math::TanhOp::create(b, scores);
  }
  return arith::MulFOp::create(b, bounded, constant(cap * unit));
}

double getKeptFactor(nn::ScoresOpInterface op) {
  std::optional<APFloat> probability = op.getDropout();
  return probability ? 1 / (1 - probability->convertToDouble()) : 1;
}

ScoreRules::ScoreRules(nn::ScoresOpInterface op)
    : unit(getScoreUnit(op)), factor(getScoreFactor(op)), kept(getKeptFactor(op)) {
  if (op.getSoftCap())
    cap = op.getSoftCap()->convertToDouble();
}

Value getLogSumExp(nn::ScoresOpInterface op) {
  if (auto gradient = dyn_cast<nn::AttentionGradOp>(op.getOperation()))
    return gradient.getLse();
  return cast<dist::LogSumExpOpInterface>(op.getOperation()).getLogSumExp();
}

bool hasWideLogSumExp(nn::ScoresOpInterface op) {
  Value lse = getLogSumExp(op);
  return lse && getElementTypeOrSelf(lse.getType()) !=
                    getComputeType(getElementTypeOrSelf(op.getQuery().getType()));
}

Value emitWideLogSumExp(ImplicitLocOpBuilder &b, nn::ScoresOpInterface op, Value sum, Value maximum) {
  Type wide = b.getF64Type(), word = b.getI32Type();
  auto constant = [&](Type type, double value) { return emitConstant(b, type, value); };
  // Numbers of f32 from 2^30 on are at least 64 apart. There the place of the maximum among
  // these numbers stands for it, times 32.
  constexpr double kFirst = kFirstWideMaximum;
  Value magnitude = math::AbsFOp::create(b, maximum);
  Value first = constant(word, llvm::bit_cast<int32_t>(float(kFirst)));
  Value place = arith::SubIOp::create(b, arith::BitcastOp::create(b, word, magnitude), first);
  place = arith::MulFOp::create(b, arith::SIToFPOp::create(b, wide, place), constant(wide, 32));
  place = arith::AddFOp::create(b, place, constant(wide, kFirst));
  place = math::CopySignOp::create(b, place, arith::ExtFOp::create(b, wide, maximum));
  Value isLarge = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, magnitude,
                                        constant(maximum.getType(), kFirst));
  Value exact = arith::MulFOp::create(b, arith::ExtFOp::create(b, wide, maximum),
                                      constant(wide, 1 / getScoreUnit(op)));
  Value natural = arith::SelectOp::create(b, isLarge, place, exact);
  Value logarithm = math::LogOp::create(b, arith::ExtFOp::create(b, wide, sum));
  return arith::AddFOp::create(b, logarithm, natural);
}

std::pair<Value, Value> emitSplitLogSumExp(ImplicitLocOpBuilder &b, nn::ScoresOpInterface op,
                                           Value wide) {
  Type compute = getComputeType(getElementTypeOrSelf(op.getQuery().getType()));
  double unit = getScoreUnit(op);
  Type type = wide.getType(), word = b.getI32Type();
  auto constant = [&](double value) { return emitConstant(b, type, value); };
  Value scaled = arith::MulFOp::create(b, wide, constant(unit));
  Value nearest = arith::TruncFOp::create(b, compute, scaled);
  Value rest = arith::SubFOp::create(b, scaled, arith::ExtFOp::create(b, type, nearest));
  // The sum is at least 1, and its logarithm less than the distance of 32 between two places.
  Value isPositive = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, wide, constant(0));
  Value above = arith::SubFOp::create(b, math::AbsFOp::create(b, wide), constant(kFirstWideMaximum));
  Value steps = arith::MulFOp::create(b, above, constant(1.0 / 32));
  Value place = arith::SelectOp::create(b, isPositive, math::FloorOp::create(b, steps),
                                        math::CeilOp::create(b, steps));
  Value isLarge = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, place, constant(0));
  // Infinity has no place.
  Value isFinite = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, above,
                                         constant(std::ldexp(1.0, 40)));
  isLarge = arith::AndIOp::create(b, isLarge, isFinite);
  place = arith::SelectOp::create(b, isLarge, place, constant(0));
  Value logarithm = arith::SubFOp::create(b, above, arith::MulFOp::create(b, place, constant(32)));
  logarithm = arith::SelectOp::create(b, isPositive, logarithm,
                                      arith::NegFOp::create(b, logarithm));
  Value bits = arith::AddIOp::create(
      b, arith::FPToSIOp::create(b, word, place),
      emitConstant(b, word, llvm::bit_cast<int32_t>(float(kFirstWideMaximum))));
  Value maximum = math::CopySignOp::create(b, arith::BitcastOp::create(b, compute, bits),
                                           arith::TruncFOp::create(b, compute, wide));
  auto choose = [&](Value large, Value small) -> Value {
    return arith::SelectOp::create(b, isLarge, large, small);
  };
  Value exponent = choose(arith::MulFOp::create(b, logarithm, constant(M_LOG2E)),
                          arith::MulFOp::create(b, rest, constant(M_LOG2E / unit)));
  return {choose(maximum, nearest), arith::TruncFOp::create(b, compute, exponent)};
}

} // namespace meshwright::lower

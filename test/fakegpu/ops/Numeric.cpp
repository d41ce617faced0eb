//===- Numeric.cpp - Floating-point formats and their rounding ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Numeric.h"

namespace fakegpu {

uint64_t roundTo(double value, unsigned exponentBits, unsigned mantissaBits, uint32_t rounding) {
  uint64_t bits = asBits(value);
  uint64_t sign = bits >> 63;
  uint64_t infinity = ((uint64_t(1) << exponentBits) - 1) << mantissaBits;
  uint64_t signBit = sign << (exponentBits + mantissaBits);
  if (std::isnan(value))
    return infinity | ((uint64_t(1) << mantissaBits) - 1);
  if (std::isinf(value))
    return signBit | infinity;
  if (value == 0)
    return signBit;
  int exponent = int(bits >> 52 & 0x7ff);
  uint64_t significand = bits & ((uint64_t(1) << 52) - 1);
  if (exponent == 0) {
    int shift = __builtin_clzll(significand) - 11;
    significand <<= shift;
    exponent = 1 - shift;
  } else {
    significand |= uint64_t(1) << 52;
  }
  exponent -= 1023;
  int bias = (1 << (exponentBits - 1)) - 1, least = 1 - bias;
  int shift = 52 - int(mantissaBits) + (exponent < least ? least - exponent : 0);
  uint64_t kept, rest, half;
  if (shift > 60) { // far below the least subnormal
    kept = 0, rest = 1, half = 2;
  } else if (shift == 0) {
    kept = significand, rest = 0, half = 1;
  } else {
    kept = significand >> shift;
    rest = significand & ((uint64_t(1) << shift) - 1);
    half = uint64_t(1) << (shift - 1);
  }
  bool up = false;
  switch (rounding) {
  case NearestEven: up = rest > half || (rest == half && (kept & 1)); break;
  case NearestAway: up = rest >= half; break;
  case Down: up = sign && rest; break;
  case Up: up = !sign && rest; break;
  default: break;
  }
  kept += up;
  uint64_t magnitude =
      exponent < least ? kept : (uint64_t(exponent + bias - 1) << mantissaBits) + kept;
  if (magnitude >= infinity) {
    bool stays = rounding == TowardZero || (rounding == Down && !sign) || (rounding == Up && sign);
    magnitude = stays ? infinity - 1 : infinity;
  }
  return signBit | magnitude;
}

namespace {

/// Moves a result that was rounded to nearest, and whose exact value is value + error, to odd.
double toOdd(double value, double error) {
  if (error == 0 || !std::isfinite(value) || std::isnan(error))
    return value;
  uint64_t bits = asBits(value);
  if (bits & 1)
    return value;
  return asDouble((error > 0) == (value > 0) ? bits + 1 : bits - 1);
}

} // namespace

double addToOdd(double a, double b) {
  double sum = a + b;
  double other = sum - a, error = (a - (sum - other)) + (b - other);
  if (sum == 0)
    return sum;
  return toOdd(sum, error);
}

double fmaToOdd(double a, double b, double c) { return addToOdd(a * b, c); }

double divideToOdd(double a, double b) {
  double q = a / b;
  if (!std::isfinite(q) || q == 0 || std::isinf(b))
    return q;
  double rest = std::fma(-q, b, a);
  return toOdd(q, b > 0 ? rest : -rest);
}

double sqrtToOdd(double a) {
  double q = std::sqrt(a);
  return !std::isfinite(q) || q == 0 ? q : toOdd(q, std::fma(-q, q, a));
}

uint8_t encodeFp8(double value, bool e5m2) {
  if (std::isnan(value))
    return 0x7f;
  uint64_t bits = e5m2 ? roundTo(value, 5, 2, NearestEven) : roundTo(value, 5, 3, NearestEven);
  uint8_t sign = std::signbit(value) ? 0x80 : 0;
  double largest = e5m2 ? 57344 : 448;
  if (e5m2)
    return std::fabs(value) > largest ? uint8_t(sign | 0x7b) : uint8_t(bits & 0xff);
  // E4M3 has bias 7 and uses the highest exponent for numbers.
  double magnitude = std::fabs(value);
  if (magnitude >= 464)
    return uint8_t(sign | 0x7e);
  int exponent = magnitude == 0 ? -6 : std::max(-6, std::ilogb(magnitude));
  double unit = std::ldexp(1.0, exponent - 3);
  double count = std::nearbyint(magnitude / unit);
  auto code = uint32_t(count) + (exponent > -6 ? uint32_t(exponent + 6) * 8 : 0);
  return uint8_t(sign | std::min(code, 0x7eu));
}

double decodeFp8(uint8_t bits, bool e5m2) {
  unsigned mantissaBits = e5m2 ? 2 : 3, magnitude = bits & 0x7f;
  int exponent = int(magnitude >> mantissaBits), bias = e5m2 ? 15 : 7;
  double mantissa = magnitude & ((1u << mantissaBits) - 1);
  double sign = bits & 0x80 ? -1 : 1;
  if (e5m2 ? exponent == 31 : magnitude == 0x7f)
    return !e5m2 || mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0)
    return sign * std::ldexp(mantissa, 1 - bias - int(mantissaBits));
  return sign * std::ldexp(mantissa + double(1u << mantissaBits), exponent - bias - int(mantissaBits));
}

double decodeFloat(uint64_t bits, Type type) {
  if (type.kind == Type::BFloat)
    return double(bfloatToFloat(uint16_t(bits)));
  if (type.kind == Type::E4M3 || type.kind == Type::E5M2)
    return decodeFp8(uint8_t(bits), type.kind == Type::E5M2);
  if (type.bits == 16)
    return double(halfToFloat(uint16_t(bits)));
  return type.bits == 32 ? double(asFloat(uint32_t(bits))) : asDouble(bits);
}

uint64_t encodeFloat(double value, Type type, uint32_t rounding) {
  if (type.kind == Type::BFloat)
    return roundTo(value, 8, 7, rounding);
  if (type.kind == Type::TF32)
    return roundTo(value, 8, 10, rounding) << 13;
  if (type.kind == Type::E4M3 || type.kind == Type::E5M2)
    return encodeFp8(value, type.kind == Type::E5M2);
  if (type.bits == 16)
    return roundTo(value, 5, 10, rounding);
  return type.bits == 32 ? roundTo(value, 8, 23, rounding) : asBits(value);
}

} // namespace fakegpu

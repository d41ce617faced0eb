//===- Numeric.h - Floating-point formats and their rounding -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_OPS_NUMERIC_H
#define FAKEGPU_OPS_NUMERIC_H

#include "ptx/Module.h"

#include <cmath>
#include <algorithm>
#include <cstring>

namespace fakegpu {

enum Rounding : uint32_t { NearestEven, TowardZero, Down, Up, NearestAway };

inline float asFloat(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
inline uint32_t asBits(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }
inline double asDouble(uint64_t bits) { double d; memcpy(&d, &bits, 8); return d; }
inline uint64_t asBits(double d) { uint64_t bits; memcpy(&bits, &d, 8); return bits; }

inline float bfloatToFloat(uint16_t h) { return asFloat(uint32_t(h) << 16); }
inline uint16_t floatToBfloat(float f) {
  uint32_t x = asBits(f);
  uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
  return (x & 0x7fffffff) > 0x7f800000 ? uint16_t(0x7fff) : uint16_t(rounded);
}
/// Without branches, so that loops over lanes vectorise.
inline float halfToFloat(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = uint32_t(h & 0x7fff) << 13;
  uint32_t special = (h & 0x7c00) == 0x7c00 ? 0x70000000u : 0u;
  float scaled = asFloat(magnitude) * 0x1p112f; // exact: subnormals become normal
  uint32_t bits = special ? (magnitude | 0x7f800000u) : asBits(scaled);
  return asFloat(bits | sign);
}

/// Rounds to a format with these exponent and mantissa bits; a NaN becomes the canonical one.
uint64_t roundTo(double value, unsigned exponentBits, unsigned mantissaBits, uint32_t rounding);
inline uint16_t floatToHalf(float f) { return uint16_t(roundTo(double(f), 5, 10, NearestEven)); }

/// a * b + c, a sum, a quotient and a root, rounded to odd: rounding again to at most 51 bits gives
/// the result that one rounding would give. The product of a and b has to be exact in 53 bits.
double fmaToOdd(double a, double b, double c);
double addToOdd(double a, double b);
double divideToOdd(double a, double b);
double sqrtToOdd(double a);

/// E4M3 and E5M2 with saturation to the largest finite value.
uint8_t encodeFp8(double value, bool e5m2);
double decodeFp8(uint8_t bits, bool e5m2);

/// The value of a float type of at most 64 bits.
double decodeFloat(uint64_t bits, Type type);
uint64_t encodeFloat(double value, Type type, uint32_t rounding);

} // namespace fakegpu

#endif

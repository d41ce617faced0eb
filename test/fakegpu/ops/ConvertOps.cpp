//===- ConvertOps.cpp - Conversions between types and address spaces ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Arithmetic.h"
#include "ops/Numeric.h"
#include "ops/Registry.h"

#include <algorithm>

namespace fakegpu {
namespace {

constexpr uint32_t kRoundInteger = 8, kSaturate = 16, kFtz = 32, kRelu = 64, kSatFinite = 128;

struct Conversion {
  Type to, from;
  uint32_t flags;
};

/// Types of a conversion are kept beside the instruction: code in aux, 4 bits of kind, 3 of log2 of bits.
uint32_t typeCode(Type t) {
  return uint32_t(t.kind) | uint32_t(__builtin_ctz(t.bits)) << 4;
}
Type typeOf(uint32_t code) { return {Type::Kind(code & 15), uint16_t(1u << (code >> 4 & 7))}; }

uint64_t loadBits(Warp &w, uint32_t reg, unsigned regBits, unsigned lane) {
  switch (regBits) {
  case 16: return w.at<uint16_t>(reg)[lane];
  case 32: return w.at<uint32_t>(reg)[lane];
  default: return w.at<uint64_t>(reg)[lane];
  }
}
void storeBits(Warp &w, uint32_t reg, unsigned regBits, unsigned lane, uint64_t value) {
  switch (regBits) {
  case 16: w.at<uint16_t>(reg)[lane] = uint16_t(value); break;
  case 32: w.at<uint32_t>(reg)[lane] = uint32_t(value); break;
  default: w.at<uint64_t>(reg)[lane] = value; break;
  }
}

double roundToInteger(double x, uint32_t mode) {
  switch (mode) {
  case TowardZero: return std::trunc(x);
  case Down: return std::floor(x);
  case Up: return std::ceil(x);
  default: return std::nearbyint(x);
  }
}

/// Floats to integers clamp; a NaN gives zero, or the least negative number of 64 bits' pattern.
uint64_t floatToInteger(double x, Type to, uint32_t mode) {
  if (std::isnan(x))
    return to.bits == 64 ? uint64_t(1) << 63 : 0;
  x = roundToInteger(x, mode);
  if (to.kind == Type::Signed) {
    double limit = std::ldexp(1.0, to.bits - 1);
    auto largest = int64_t((uint64_t(1) << (to.bits - 1)) - 1);
    return uint64_t(x >= limit ? largest : x < -limit ? -largest - 1 : int64_t(x));
  }
  double limit = std::ldexp(1.0, to.bits);
  uint64_t largest = to.bits == 64 ? ~uint64_t(0) : (uint64_t(1) << to.bits) - 1;
  return x >= limit ? largest : x < 0 ? 0 : uint64_t(x);
}

uint64_t integerToFloat(uint64_t bits, Type from, Type to, uint32_t mode) {
  bool negative = from.kind == Type::Signed && int64_t(bits) < 0;
  uint64_t magnitude = negative ? 0 - bits : bits;
  // More bits than a double has: to odd, so that one rounding follows.
  double value;
  if (magnitude >> 53 && to.bits < 64) {
    uint64_t sticky = magnitude & 0xfff ? 0x1000 : 0;
    value = double((magnitude & ~uint64_t(0xfff)) | sticky);
    // Bit 12 may be set already; the sum above is an "or".
  } else {
    value = double(magnitude);
    if (to.bits == 64 && mode != NearestEven && (magnitude >> 53)) {
      auto back = (unsigned __int128)(value);
      bool below = back < magnitude, above = back > magnitude;
      bool wantsUp = mode == (negative ? Down : Up);
      if (below && wantsUp)
        value = std::nextafter(value, INFINITY);
      if (above && !wantsUp)
        value = std::nextafter(value, 0.0);
    }
  }
  return encodeFloat(negative ? -value : value, to, mode);
}

uint64_t extend(uint64_t bits, Type from) {
  if (from.bits == 64)
    return bits;
  uint64_t low = bits & ((uint64_t(1) << from.bits) - 1);
  bool negative = from.kind == Type::Signed && (low >> (from.bits - 1) & 1);
  return negative ? low | ~((uint64_t(1) << from.bits) - 1) : low;
}

/// Clamps an integer to another integer type.
uint64_t clampInteger(uint64_t bits, Type from, Type to) {
  __int128 value = from.kind == Type::Signed ? __int128(int64_t(bits)) : __int128(bits);
  __int128 one = 1, low = to.kind == Type::Signed ? -(one << (to.bits - 1)) : 0;
  __int128 high = to.kind == Type::Signed ? (one << (to.bits - 1)) - 1 : (one << to.bits) - 1;
  return uint64_t(value < low ? low : value > high ? high : value);
}

uint64_t convert(uint64_t bits, const Conversion &c) {
  uint32_t mode = c.flags & 7;
  if (!c.from.isFloat()) {
    bits = extend(bits, c.from);
    if (c.to.isFloat()) {
      uint64_t result = integerToFloat(bits, c.from, c.to, mode);
      return c.flags & kSaturate ? encodeFloat(std::min(1.0, std::max(0.0, decodeFloat(result, c.to))), c.to, 0)
                                 : result;
    }
    // A register that is wider than the type takes the value as the type reads it.
    return extend(c.flags & kSaturate ? clampInteger(bits, c.from, c.to) : bits, c.to);
  }
  double x = decodeFloat(bits, c.from);
  if ((c.flags & kFtz) && c.from.bits == 32 && std::fabs(x) < 0x1p-126)
    x = std::copysign(0.0, x);
  if (!c.to.isFloat())
    return extend(floatToInteger(x, c.to, mode), c.to);
  if (c.flags & kRoundInteger)
    x = roundToInteger(x, mode), mode = NearestEven;
  if (c.flags & kSaturate)
    x = !(x > 0) ? 0 : std::min(x, 1.0);
  if ((c.flags & kRelu) && !(x > 0) && !std::isnan(x))
    x = 0;
  uint64_t result = encodeFloat(x, c.to, mode);
  if ((c.flags & kFtz) && c.to.bits == 32 && !(result & 0x7f800000))
    result &= 0x80000000;
  if (c.flags & kSatFinite) { // of f16, bf16 and tf32: no infinities
    double y = decodeFloat(result, c.to.kind == Type::TF32 ? Type{Type::Float, 32} : c.to);
    if (std::isinf(y))
      result = encodeFloat(x, c.to, TowardZero) - (std::isinf(x) ? 1 : 0);
  }
  return result;
}

Conversion conversionOf(const Inst &i) {
  return {typeOf(i.aux & 255), typeOf(i.aux >> 8 & 255), uint32_t(i.aux >> 16)};
}

void convertHandler(Warp &w, const Inst &i, uint32_t mask) {
  Conversion c = conversionOf(i);
  uint64_t result[kLanes];
  eachLane(mask, [&](unsigned l) { result[l] = convert(loadBits(w, i.a, i.width, l), c); });
  eachLane(mask, [&](unsigned l) { storeBits(w, i.dst, i.regWidth, l, result[l]); });
}

/// d = {a, b}: b in the low half.
void convertPairHandler(Warp &w, const Inst &i, uint32_t mask) {
  Conversion c = conversionOf(i);
  uint32_t result[kLanes];
  eachLane(mask, [&](unsigned l) {
    auto high = uint32_t(convert(loadBits(w, i.a, 32, l), c)), low = uint32_t(convert(loadBits(w, i.b, 32, l), c));
    result[l] = low | high << c.to.bits;
  });
  eachLane(mask, [&](unsigned l) { storeBits(w, i.dst, i.regWidth, l, result[l]); });
}

/// Two elements to two elements (f16x2 to e4m3x2 and back).
void convertPackedHandler(Warp &w, const Inst &i, uint32_t mask) {
  Conversion c = conversionOf(i);
  eachLane(mask, [&](unsigned l) {
    uint64_t in = loadBits(w, i.a, i.width, l), low = (uint64_t(1) << c.from.bits) - 1;
    uint64_t first = convert(in & low, c), second = convert(in >> c.from.bits & low, c);
    storeBits(w, i.dst, i.regWidth, l, first | second << c.to.bits);
  });
}

template <typename To, typename From, typename F> void fastHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<From>(i.a);
  setLanes(w.at<To>(i.dst), mask, [=](unsigned l) { return To(F::apply(a[l])); });
}
struct Cast { template <typename T> static T apply(T a) { return a; } };
struct FromBf { static float apply(uint16_t a) { return bfloatToFloat(a); } };
struct ToBf { static uint16_t apply(float a) { return floatToBfloat(a); } };
struct FromHalf {
  static float apply(uint16_t a) {
    float f = halfToFloat(a);
    return f != f ? asFloat(0x7fffffff) : f;
  }
};

/// Vectorised handlers of frequent conversions.
Handler fastConversion(const Conversion &c) {
  bool exact = c.flags == 0;
  bool f32 = c.to == Type{Type::Float, 32};
  if (!exact)
    return nullptr;
  if (f32 && c.from.kind == Type::BFloat)
    return fastHandler<float, uint16_t, FromBf>;
  if (c.to.kind == Type::BFloat && c.from == Type{Type::Float, 32})
    return fastHandler<uint16_t, float, ToBf>;
  if (f32 && c.from == Type{Type::Float, 16})
    return fastHandler<float, uint16_t, FromHalf>;
  if (f32 && c.from == Type{Type::Signed, 32})
    return fastHandler<float, int32_t, Cast>;
  if (f32 && c.from == Type{Type::Unsigned, 32})
    return fastHandler<float, uint32_t, Cast>;
  if (!c.to.isFloat() && c.to.bits == 64 && c.from == Type{Type::Unsigned, 32})
    return fastHandler<uint64_t, uint32_t, Cast>;
  if (!c.to.isFloat() && c.to.bits == 64 && c.from == Type{Type::Signed, 32})
    return fastHandler<int64_t, int32_t, Cast>;
  if (!c.to.isFloat() && c.to.bits == 32 && !c.from.isFloat() && c.from.bits == 64)
    return fastHandler<uint32_t, uint64_t, Cast>;
  return nullptr;
}

uint32_t takeConversionFlags(Decoder &d) {
  uint32_t flags = 0;
  int integer = d.takeOneOf({"rni", "rzi", "rmi", "rpi"}), plain = d.takeOneOf({"rn", "rz", "rm", "rp", "rna"});
  if (integer >= 0)
    flags |= kRoundInteger | uint32_t(integer);
  if (plain > 0)
    flags |= uint32_t(plain);
  flags |= d.take("ftz") ? kFtz : 0;
  flags |= d.take("relu") ? kRelu : 0;
  flags |= d.take("satfinite") ? kSatFinite : 0;
  flags |= d.take("sat") ? kSaturate : 0;
  return flags;
}

/// Source and destination registers may be wider than their types.
unsigned widthOfRegister(Decoder &d, const Operand &o, Type type) {
  if (!d.isRegister(o))
    return registerBits(type);
  unsigned bits = registerBits(d.reg(o).type);
  if (bits < type.width() || bits > 64)
    d.fail("register '" + o.name + "' is too narrow");
  return bits;
}

void decodeCvt(Decoder &d) {
  uint32_t flags = takeConversionFlags(d);
  if (d.take("pack"))
    d.fail("cvt.pack is not supported");
  Type to = d.takeType(), from = d.takeType();
  if (to.isFloat() && from.isFloat() && (flags & kRoundInteger) == 0 && to.bits >= from.bits &&
      to.kind != Type::TF32 && to.lanes == 1 && from.lanes == 1)
    flags &= ~7u;
  if (!to.isFloat() && from.isFloat() && !(flags & kRoundInteger))
    d.fail("a conversion to an integer needs .rni, .rzi, .rmi or .rpi");
  if (to.isFloat() && !from.isFloat())
    flags &= ~kRoundInteger;
  if (!to.isFloat() || from.bits == 64)
    flags &= ~(to.isFloat() ? 0u : kRoundInteger);
  bool pair = to.lanes == 2 && from.lanes == 1;
  d.expectOperands(pair ? 3 : 2, pair ? 3 : 2);
  d.inst.width = uint8_t(widthOfRegister(d, d.operand(1), from));
  d.inst.a = d.source(1, {Type::Bits, d.inst.width});
  if (d.operand(1).form == Operand::F32 || d.operand(1).form == Operand::Decimal)
    d.inst.a = d.source(1, from);
  if (pair)
    d.inst.b = d.source(2, from);
  d.inst.regWidth = uint8_t(widthOfRegister(d, d.operand(0), to));
  d.inst.dst = d.reg(d.operand(0)).offset;
  Conversion c{{to.kind, to.bits}, {from.kind, from.bits}, flags};
  if (to.kind == Type::E4M3 || to.kind == Type::E5M2)
    c.flags &= ~kSatFinite; // always
  d.inst.aux = typeCode(c.to) | typeCode(c.from) << 8 | c.flags << 16;
  if (to.lanes == 2)
    return d.finish(pair ? convertPairHandler : convertPackedHandler);
  Handler fast = fastConversion(c);
  bool plain = d.inst.width == std::max(16u, unsigned(from.bits)) && d.inst.regWidth == std::max(16u, unsigned(to.bits));
  d.finish(fast && plain && d.isRegister(d.operand(1)) ? fast : convertHandler);
}

uint64_t windowOf(Space space) {
  return space == Space::Shared ? kSharedWindow : space == Space::Local ? kLocalWindow
                                                : space == Space::Param ? kParamWindow : 0;
}

/// cvta: adds the window of a space to an address, or takes it away. imm: the window.
void toGenericHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint64_t>(i.a);
  auto window = uint64_t(i.imm);
  setLanes(w.at<uint64_t>(i.dst), mask, [=](unsigned l) { return a[l] + window; });
}
void fromGenericHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint64_t>(i.a);
  auto window = uint64_t(i.imm);
  eachLane(mask, [&](unsigned l) {
    if (a[l] >> 56 != window >> 56 && a[l] != 0)
      raise(Fault::BadSpace, "the generic address is in another state space", i, w, l);
  });
  setLanes(w.at<uint64_t>(i.dst), mask, [=](unsigned l) { return a[l] ? a[l] - window : 0; });
}

void decodeCvta(Decoder &d) {
  bool to = d.take("to");
  Space space = d.takeSpace();
  if (space == Space::Generic)
    d.fail("expected a state space");
  d.inst.imm = int64_t(windowOf(space));
  decodeSources(d, d.takeType(), 1);
  d.finish(to ? fromGenericHandler : toGenericHandler);
}

/// isspacep: whether a generic address is in a space.
void decodeIsspacep(Decoder &d) {
  Space space = d.takeSpace();
  d.expectOperands(2, 2);
  d.inst.dst = d.destination(0, {Type::Pred, 1});
  d.inst.a = d.source(1, {Type::Unsigned, 64});
  d.inst.imm = int64_t(windowOf(space));
  d.finish([](Warp &w, const Inst &i, uint32_t mask) {
    const auto *a = w.at<uint64_t>(i.a);
    uint32_t result = maskOf([=](unsigned l) { return a[l] >> 56 == uint64_t(i.imm) >> 56; });
    w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (result & mask);
  });
}

} // namespace

void addConvertOps(DecodeTable &table) {
  table["cvt"] = decodeCvt;
  table["cvta"] = decodeCvta;
  table["isspacep"] = decodeIsspacep;
}

} // namespace fakegpu

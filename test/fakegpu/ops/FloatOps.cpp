//===- FloatOps.cpp - Floating-point arithmetic and comparisons --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Arithmetic.h"
#include "ops/Numeric.h"
#include "ops/Registry.h"

#include <algorithm>
#include <cfenv>

namespace fakegpu {
namespace {

// Flags in aux, above the rounding mode.
constexpr uint32_t kModeMask = 7, kFtz = 8, kSaturate = 16, kRelu = 32, kNan = 64, kXorSign = 128,
                   kAbs = 256;

enum Operation { Add, Sub, Mul, Fma, Neg, Absolute, Div, Sqrt, Rcp, Rsqrt, Sin, Cos, Lg2, Ex2, Tanh,
                 Min, Max, CopySign };

float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
double saturate(double x) { return !(x > 0) ? 0 : x < 1 ? x : 1; } // NaN gives 0

double minMax(double a, double b, bool max, uint32_t flags) {
  double result;
  if (flags & kAbs)
    a = std::fabs(a), b = std::fabs(b);
  if (std::isnan(a) || std::isnan(b)) {
    if ((flags & kNan) || (std::isnan(a) && std::isnan(b)))
      return NAN;
    result = std::isnan(a) ? b : a;
  } else if (a == b) { // zeros differ in sign
    result = (std::signbit(a) == max) ? b : a;
  } else {
    result = (a < b) != max ? a : b;
  }
  return result;
}

/// A result exact enough that one more rounding to `bits` mantissa bits of at most 24 is the only one.
double evaluate(Operation op, double a, double b, double c) {
  switch (op) {
  case Add: return addToOdd(a, b);
  case Sub: return addToOdd(a, -b);
  case Mul: return a * b;
  case Fma: return fmaToOdd(a, b, c);
  case Neg: return -a;
  case Absolute: return std::fabs(a);
  case Div: return divideToOdd(a, b);
  case Sqrt: return sqrtToOdd(a);
  case Rcp: return divideToOdd(1, a);
  case Rsqrt: return 1 / std::sqrt(a);
  case Sin: return std::sin(a);
  case Cos: return std::cos(a);
  case Lg2: return std::log2(a);
  case Ex2: return std::exp2(a);
  case Tanh: return std::tanh(a);
  case CopySign: return std::copysign(b, a);
  default: return NAN;
  }
}

/// A sum of zero is -0 if it is rounded down, unless both terms are +0.
double zeroSum(double sum, double a, double b, uint32_t mode) {
  bool positive = a == 0 && b == 0 && !std::signbit(a) && !std::signbit(b);
  return sum == 0 && mode == Down && !positive ? -0.0 : sum;
}

double finishValue(double x, uint32_t flags) {
  if (flags & kSaturate)
    x = saturate(x);
  if (flags & kRelu)
    x = std::isnan(x) ? x : x > 0 ? x : 0.0;
  return x;
}

uint32_t canonical(float x) { return x != x ? 0x7fffffffu : asBits(x); }

template <Operation op> float nativeF32(float a, float b, float c) {
  switch (op) {
  case Add: return a + b;
  case Sub: return a - b;
  case Mul: return a * b;
  case Fma: return std::fma(a, b, c);
  case Div: return a / b;
  case Sqrt: return std::sqrt(a);
  case Rcp: return 1 / a;
  case Rsqrt: return float(1 / std::sqrt(double(a)));
  default: return float(evaluate(op, double(a), double(b), double(c)));
  }
}

/// One lane with all flags.
template <Operation op> uint32_t slowF32(float a, float b, float c, uint32_t flags) {
  if (flags & kFtz)
    a = flush(a), b = flush(b), c = flush(c);
  double x;
  if (op == Min || op == Max) {
    x = minMax(double(a), double(b), op == Max, flags);
    if (flags & kXorSign)
      x = std::copysign(x, std::signbit(a) != std::signbit(b) ? -1.0 : 1.0);
  } else {
    x = evaluate(op, double(a), double(b), double(c));
  }
  if (op == Add || op == Sub)
    x = zeroSum(x, double(a), op == Sub ? -double(b) : double(b), flags & kModeMask);
  if (op == Fma)
    x = zeroSum(x, double(a) * double(b), double(c), flags & kModeMask);
  x = finishValue(x, flags);
  auto bits = uint32_t(roundTo(x, 8, 23, flags & kModeMask));
  if ((flags & kFtz) && !(bits & 0x7f800000u))
    bits &= 0x80000000u;
  return bits;
}

template <Operation op> void f32Handler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<float>(i.a), *b = w.at<float>(i.b), *c = w.at<float>(i.c);
  auto *dst = w.at<uint32_t>(i.dst);
  constexpr bool native = op <= Fma || op == Div || op == Sqrt || op == Rcp || op == Rsqrt;
  if (native && i.aux == 0)
    return setLanes(dst, mask, [=](unsigned l) { return canonical(nativeF32<op>(a[l], b[l], c[l])); });
  uint32_t flags = i.aux;
  uint32_t result[kLanes];
  eachLane(mask, [&](unsigned l) { result[l] = slowF32<op>(a[l], b[l], c[l], flags); });
  eachLane(mask, [&](unsigned l) { dst[l] = result[l]; });
}

/// neg and abs change the sign alone, of a NaN, too.
template <typename T, bool Negate> void signHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a);
  T sign = T(1) << (sizeof(T) * 8 - 1);
  if (i.flag) // two halves of a word
    sign |= T(0x8000);
  bool ftz = i.aux & kFtz;
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) {
    T x = Negate ? T(a[l] ^ sign) : T(a[l] & ~sign);
    if (ftz && sizeof(T) == 4 && !(x & T(0x7f800000)))
      x &= sign;
    return x;
  });
}

/// The host rounds 64-bit floats in the mode of an instruction while this object lives.
class HostRounding {
public:
  explicit HostRounding(uint32_t mode) : before(std::fegetround()) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    std::fesetround(modes[mode & 3]);
  }
  ~HostRounding() { std::fesetround(before); }

private:
  int before;
};

template <Operation op> double nativeF64(double a, double b, double c) {
  switch (op) {
  case Add: return a + b;
  case Sub: return a - b;
  case Mul: return a * b;
  case Fma: return std::fma(a, b, c);
  case Div: return a / b;
  case Sqrt: return std::sqrt(a);
  case Rcp: return 1 / a;
  default: return evaluate(op, a, b, c);
  }
}

template <Operation op> double f64(double a, double b, double c, uint32_t mode) {
  if (op == Min || op == Max)
    return minMax(a, b, op == Max, mode);
  if (!(mode & kModeMask))
    return nativeF64<op>(a, b, c);
  // Compilers may move arithmetic over a change of the mode, but not reads and writes of these.
  volatile double x = a, y = b, z = c, result;
  HostRounding rounding(mode & kModeMask);
  result = nativeF64<op>(x, y, z);
  return result;
}

template <Operation op> void f64Handler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<double>(i.a), *b = w.at<double>(i.b), *c = w.at<double>(i.c);
  uint32_t mode = i.aux;
  setLanes(w.at<double>(i.dst), mask, [=](unsigned l) {
    double x = f64<op>(a[l], b[l], c[l], mode);
    return x != x ? asDouble(0x7fffffffffffffffu) : x;
  });
}

/// 16-bit formats; flag: two elements in a word.
template <Operation op, bool Bf> uint16_t small(uint16_t a, uint16_t b, uint16_t c, uint32_t flags) {
  auto load = [&](uint16_t h) {
    if (Bf)
      return double(bfloatToFloat(h));
    if ((flags & kFtz) && !(h & 0x7c00))
      h &= 0x8000;
    return double(halfToFloat(h));
  };
  double x = load(a), y = load(b), z = load(c), result;
  if (op == Min || op == Max) {
    result = minMax(x, y, op == Max, flags);
    if (flags & kXorSign)
      result = std::copysign(result, std::signbit(x) != std::signbit(y) ? -1.0 : 1.0);
  } else {
    result = evaluate(op, x, y, z);
  }
  result = finishValue(result, flags);
  auto bits = uint16_t(Bf ? roundTo(result, 8, 7, flags & kModeMask) : roundTo(result, 5, 10, flags & kModeMask));
  if (!Bf && (flags & kFtz) && !(bits & 0x7c00))
    bits &= 0x8000;
  return bits;
}

template <Operation op, bool Bf> void smallHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint32_t flags = i.aux;
  if (i.flag) {
    const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
    auto *dst = w.at<uint32_t>(i.dst);
    eachLane(mask, [&](unsigned l) {
      uint32_t lo = small<op, Bf>(uint16_t(a[l]), uint16_t(b[l]), uint16_t(c[l]), flags);
      uint32_t hi = small<op, Bf>(uint16_t(a[l] >> 16), uint16_t(b[l] >> 16), uint16_t(c[l] >> 16), flags);
      dst[l] = lo | hi << 16;
    });
    return;
  }
  const auto *a = w.at<uint16_t>(i.a), *b = w.at<uint16_t>(i.b), *c = w.at<uint16_t>(i.c);
  auto *dst = w.at<uint16_t>(i.dst);
  eachLane(mask, [&](unsigned l) { dst[l] = small<op, Bf>(a[l], b[l], c[l], flags); });
}

template <Operation op> Handler handlerOf(Decoder &d, Type type) {
  d.inst.flag = type.lanes == 2;
  if (type.bits == 16)
    return type.kind == Type::BFloat ? smallHandler<op, true> : smallHandler<op, false>;
  if (type.lanes == 2)
    d.fail("type .f32x2 is not supported");
  return type.bits == 32 ? f32Handler<op> : f64Handler<op>;
}

void takeFlags(Decoder &d, Type type) {
  uint32_t mode = 0;
  int rounding = d.takeOneOf({"rn", "rz", "rm", "rp"});
  if (rounding > 0)
    mode = uint32_t(rounding);
  if (d.take("ftz"))
    mode |= kFtz;
  if (d.take("sat"))
    mode |= kSaturate;
  if (d.take("relu"))
    mode |= kRelu;
  if (type.bits == 64 && (mode & ~kModeMask))
    d.fail("a modifier that .f64 lacks");
  d.inst.aux = mode;
}

Handler signHandlerOf(Type type, bool negate) {
  if (type.width() == 16)
    return negate ? signHandler<uint16_t, true> : signHandler<uint16_t, false>;
  if (type.width() == 32)
    return negate ? signHandler<uint32_t, true> : signHandler<uint32_t, false>;
  return negate ? signHandler<uint64_t, true> : signHandler<uint64_t, false>;
}

/// Unused sources read the first one.
void decodeFloatSources(Decoder &d, Type type, size_t count) {
  decodeSources(d, type, count);
  if (count < 2)
    d.inst.b = d.inst.a;
  if (count < 3)
    d.inst.c = d.inst.a;
}

/// A gross approximation of f64: the lower halves of operand and result do not count.
template <Operation op> void grossHandler(Warp &w, const Inst &i, uint32_t mask) {
  constexpr uint64_t upper = 0xffffffff00000000u, sign = uint64_t(1) << 63;
  auto flushed = [=](uint64_t x) { return x & 0x7ff0000000000000u ? x : x & sign; };
  const auto *a = w.at<uint64_t>(i.a);
  setLanes(w.at<uint64_t>(i.dst), mask, [=](unsigned l) {
    double x = evaluate(op, asDouble(flushed(a[l] & upper)), 0, 0);
    if (x != x)
      return uint64_t(0x7fffffff00000000u);
    return flushed(asBits(x) & upper);
  });
}

template <Operation op> void decodeApproximate(Decoder &d) {
  bool approximate = d.take("approx") || d.take("full");
  Type type = d.takeType();
  if constexpr (op == Rcp || op == Rsqrt)
    if (approximate && type.bits == 64 && type.isFloat()) {
      d.require("ftz");
      decodeFloatSources(d, type, 1);
      return d.finish(grossHandler<op>);
    }
  takeFlags(d, type);
  (void)approximate; // the approximation is better than the hardware's
  decodeFloatSources(d, type, op == CopySign ? 2 : 1);
  d.finish(handlerOf<op>(d, type));
}

void decodeFma(Decoder &d) {
  Type type = d.takeType();
  takeFlags(d, type);
  if (d.statement().mods[0] == "oob")
    d.fail("modifier .oob is not supported");
  decodeFloatSources(d, type, 3);
  d.finish(handlerOf<Fma>(d, type));
}

void decodeTestp(Decoder &d) {
  d.inst.aux = uint32_t(d.takeOneOf({"finite", "infinite", "number", "notanumber", "normal", "subnormal"}));
  if (d.inst.aux > 5)
    d.fail("expected a property");
  Type type = d.takeType();
  d.expectOperands(2, 2);
  d.inst.dst = d.destination(0, {Type::Pred, 1});
  d.inst.a = d.source(1, type);
  d.inst.flag = type.bits == 64;
  d.finish([](Warp &w, const Inst &i, uint32_t mask) {
    auto test = [&](auto x) {
      switch (i.aux) {
      case 0: return std::isfinite(x);
      case 1: return std::isinf(x);
      case 2: return !std::isnan(x);
      case 3: return std::isnan(x);
      case 4: return std::isnormal(x) || x == 0; // The manual counts zeros of both signs.
      default: return std::fpclassify(x) == FP_SUBNORMAL;
      }
    };
    uint32_t result = 0;
    for (unsigned l = 0; l < kLanes; ++l)
      result |= uint32_t(i.flag ? test(w.at<double>(i.a)[l]) : test(w.at<float>(i.a)[l])) << l;
    w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (result & mask);
  });
}

enum Comparison { Eq, Ne, Lt, Le, Gt, Ge, Equ, Neu, Ltu, Leu, Gtu, Geu, Num, Nan };

template <typename T> bool holds(T a, T b, uint32_t comparison) {
  bool unordered = a != a || b != b;
  switch (comparison) {
  case Eq: return a == b;
  case Ne: return !unordered && a != b;
  case Lt: return a < b;
  case Le: return a <= b;
  case Gt: return a > b;
  case Ge: return a >= b;
  case Equ: return unordered || a == b;
  case Neu: return unordered || a != b;
  case Ltu: return unordered || a < b;
  case Leu: return unordered || a <= b;
  case Gtu: return unordered || a > b;
  case Geu: return unordered || a >= b;
  case Num: return !unordered;
  default: return unordered;
  }
}

/// width: the bits of the type; regWidth: 1 for bf16; wideBase: not flushed.
void compareHandler(Warp &w, const Inst &i, uint32_t mask) {
  uint32_t comparison = i.aux;
  uint32_t result = 0;
  bool ftz = !i.wideBase;
  auto each = [&](auto load) {
    for (unsigned l = 0; l < kLanes; ++l)
      result |= uint32_t(holds(load(i.a, l), load(i.b, l), comparison)) << l;
  };
  if (i.width == 64)
    each([&](uint32_t r, unsigned l) { return w.at<double>(r)[l]; });
  else if (i.width == 32)
    each([&](uint32_t r, unsigned l) { float x = w.at<float>(r)[l]; return ftz ? flush(x) : x; });
  else if (i.regWidth)
    each([&](uint32_t r, unsigned l) { return bfloatToFloat(w.at<uint16_t>(r)[l]); });
  else
    each([&](uint32_t r, unsigned l) { return halfToFloat(w.at<uint16_t>(r)[l]); });
  storeComparison(w, i, mask, result);
}

/// Both halves of a word, each with its own predicate.
void comparePairsHandler(Warp &w, const Inst &i, uint32_t mask) {
  for (unsigned half = 0; half < 2; ++half) {
    uint32_t result = 0;
    for (unsigned l = 0; l < kLanes; ++l) {
      auto a = uint16_t(w.at<uint32_t>(i.a)[l] >> (16 * half)), b = uint16_t(w.at<uint32_t>(i.b)[l] >> (16 * half));
      bool h = i.regWidth ? holds(bfloatToFloat(a), bfloatToFloat(b), i.aux)
                          : holds(halfToFloat(a), halfToFloat(b), i.aux);
      result |= uint32_t(h) << l;
    }
    uint32_t to = half ? i.d : i.dst;
    if (to != kNone)
      w.mask(to) = (w.mask(to) & ~mask) | (result & mask);
  }
}

} // namespace

void decodeFloatCompare(Decoder &d, Type type) {
  int comparison = d.takeOneOf({"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu",
                                "gtu", "geu", "num", "nan"});
  if (comparison < 0)
    d.fail("expected a comparison");
  d.inst.wideBase = !d.take("ftz");
  decodeCompareOperands(d, type);
  d.inst.aux = uint32_t(comparison);
  d.inst.width = uint8_t(type.bits);
  d.inst.regWidth = type.kind == Type::BFloat;
  if (type.lanes == 2 && d.inst.imm)
    d.fail("a combined predicate is not supported for packed types");
  d.finish(type.lanes == 2 ? comparePairsHandler : compareHandler);
}

void decodeFloatArithmetic(Decoder &d, Type type) {
  const std::string &name = d.statement().opcode;
  if (name == "neg" || name == "abs") {
    d.inst.aux = d.take("ftz") ? kFtz : 0;
    decodeSources(d, type, 1);
    d.inst.flag = type.lanes == 2;
    return d.finish(signHandlerOf(type, name == "neg"));
  }
  if (name == "div") { // approximate forms are rounded to nearest
    if (d.take("approx") || d.take("full")) {
    }
  }
  takeFlags(d, type);
  decodeFloatSources(d, type, name == "mad" ? 3 : 2);
  d.finish(name == "add"   ? handlerOf<Add>(d, type)
           : name == "sub" ? handlerOf<Sub>(d, type)
           : name == "mul" ? handlerOf<Mul>(d, type)
           : name == "mad" ? handlerOf<Fma>(d, type)
                           : handlerOf<Div>(d, type));
}

void decodeFloatMinMax(Decoder &d, Type type) {
  bool max = d.statement().opcode == "max";
  uint32_t flags = (d.take("ftz") ? kFtz : 0) | (d.take("NaN") ? kNan : 0);
  if (d.take("xorsign")) {
    d.require("abs");
    flags |= kXorSign | kAbs;
  }
  decodeFloatSources(d, type, 2);
  d.inst.aux = flags;
  d.finish(max ? handlerOf<Max>(d, type) : handlerOf<Min>(d, type));
}

void addFloatOps(DecodeTable &table) {
  table["fma"] = decodeFma;
  table["sqrt"] = decodeApproximate<Sqrt>;
  table["rcp"] = decodeApproximate<Rcp>;
  table["rsqrt"] = decodeApproximate<Rsqrt>;
  table["sin"] = decodeApproximate<Sin>;
  table["cos"] = decodeApproximate<Cos>;
  table["lg2"] = decodeApproximate<Lg2>;
  table["ex2"] = decodeApproximate<Ex2>;
  table["tanh"] = decodeApproximate<Tanh>;
  table["copysign"] = decodeApproximate<CopySign>;
  table["testp"] = decodeTestp;
}

} // namespace fakegpu

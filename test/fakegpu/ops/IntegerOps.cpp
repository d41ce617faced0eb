//===- IntegerOps.cpp - Integer arithmetic and comparisons -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Arithmetic.h"
#include "ops/Registry.h"

#include <algorithm>
#include <limits>

namespace fakegpu {
namespace {

struct Add { template <typename T> static T apply(T a, T b) { return T(Unsigned<T>(a) + Unsigned<T>(b)); } };
struct Sub { template <typename T> static T apply(T a, T b) { return T(Unsigned<T>(a) - Unsigned<T>(b)); } };
struct Lo { template <typename T> static T apply(T a, T b) { return T(Unsigned<T>(uint64_t(a) * uint64_t(b))); } };
struct Hi {
  template <typename T> static T apply(T a, T b) {
    return T((Wide<T>(a) * Wide<T>(b)) >> (sizeof(T) * 8));
  }
};
// The result of a division by zero is unspecified; hardware gives all ones.
struct Div {
  template <typename T> static T apply(T a, T b) {
    if (b == 0)
      return T(~T(0));
    if (std::is_signed<T>::value && a == std::numeric_limits<T>::min() && b == T(-1))
      return a;
    return T(a / b);
  }
};
struct Rem {
  template <typename T> static T apply(T a, T b) {
    if (b == 0)
      return a;
    if (std::is_signed<T>::value && b == T(-1))
      return 0;
    return T(a % b);
  }
};
struct Min { template <typename T> static T apply(T a, T b) { return a < b ? a : b; } };
struct Max { template <typename T> static T apply(T a, T b) { return a < b ? b : a; } };
struct Neg { template <typename T> static T apply(T a) { return T(0 - Unsigned<T>(a)); } };
struct Abs { template <typename T> static T apply(T a) { return a < 0 ? T(0 - Unsigned<T>(a)) : a; } };
struct MadLo { template <typename T> static T apply(T a, T b, T c) { return Add::apply(Lo::apply(a, b), c); } };
struct MadHi { template <typename T> static T apply(T a, T b, T c) { return Add::apply(Hi::apply(a, b), c); } };
struct Sad { template <typename T> static T apply(T a, T b, T c) { return T(Unsigned<T>(c) + (a < b ? Unsigned<T>(b) - Unsigned<T>(a) : Unsigned<T>(a) - Unsigned<T>(b))); } };
struct AddSat {
  template <typename T> static T apply(T a, T b) {
    return T(std::clamp<int64_t>(int64_t(a) + int64_t(b), INT32_MIN, INT32_MAX));
  }
};
struct SubSat {
  template <typename T> static T apply(T a, T b) {
    return T(std::clamp<int64_t>(int64_t(a) - int64_t(b), INT32_MIN, INT32_MAX));
  }
};

template <typename F> struct Packed16 {
  template <typename T> static T apply(T a, T b) {
    using H = std::conditional_t<std::is_signed<T>::value, int16_t, uint16_t>;
    auto lo = uint16_t(F::apply(H(a), H(b))), hi = uint16_t(F::apply(H(a >> 16), H(b >> 16)));
    return T(uint32_t(lo) | uint32_t(hi) << 16);
  }
};

/// The first term of an extended-precision sum: an operand, or half of a product.
enum class Term { Plain, Low, High };

/// Extended-precision addition: the carry is one flag of each lane.
template <typename T, bool Subtract, Term term = Term::Plain>
void carryHandler(Warp &w, const Inst &i, uint32_t mask) {
  using U = Unsigned<T>;
  const U *a = w.at<U>(i.a), *b = w.at<U>(i.b);
  U product[kLanes];
  if constexpr (term != Term::Plain) {
    for (unsigned l = 0; l < kLanes; ++l)
      product[l] = U(term == Term::Low ? Lo::apply(T(a[l]), T(b[l])) : Hi::apply(T(a[l]), T(b[l])));
    a = product;
    b = w.at<U>(i.c);
  }
  uint32_t in = i.flag ? w.carry : 0, out = 0;
  U result[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) {
    U bit = in >> l & 1, t;
    bool c;
    if (Subtract) {
      t = U(a[l] - b[l]);
      c = a[l] < b[l] || t < bit;
      t = U(t - bit);
    } else {
      t = U(a[l] + b[l]);
      c = t < a[l];
      t = U(t + bit);
      c |= t < bit;
    }
    result[l] = t;
    out |= uint32_t(c) << l;
  }
  setLanes(w.at<U>(i.dst), mask, [&](unsigned l) { return result[l]; });
  if (i.aux)
    w.carry = (w.carry & ~mask) | (out & mask);
}

template <bool Subtract> void decodeCarry(Decoder &d, bool carryIn) {
  d.inst.aux = d.take("cc");
  d.inst.flag = carryIn;
  Type type = d.takeType();
  decodeSources(d, type, 2);
  if (type.bits != 32 && type.bits != 64)
    d.fail("expected a type of 32 or 64 bits");
  d.finish(type.bits == 64 ? carryHandler<uint64_t, Subtract> : carryHandler<uint32_t, Subtract>);
}

template <Term term> Handler productHandler(Decoder &d, Type type) {
  return forInteger(d, type, [](auto v) -> Handler {
    if constexpr (sizeof(v) >= 4)
      return carryHandler<decltype(v), false, term>;
    return nullptr;
  });
}

/// mad.cc, madc and madc.cc.
void decodeProductCarry(Decoder &d, bool carryIn) {
  d.inst.aux = d.take("cc");
  d.inst.flag = carryIn;
  bool high = d.take("hi");
  if (!high)
    d.require("lo");
  Type type = d.takeType();
  decodeSources(d, type, 3);
  if (type.bits != 32 && type.bits != 64)
    d.fail("expected a type of 32 or 64 bits");
  d.finish(high ? productHandler<Term::High>(d, type) : productHandler<Term::Low>(d, type));
}

template <typename Plain, typename Saturated, bool Subtract> void decodeAddSub(Decoder &d) {
  for (const std::string &mod : d.statement().mods)
    if (mod == "cc")
      return decodeCarry<Subtract>(d, false);
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatArithmetic(d, type);
  bool saturate = d.take("sat");
  decodeSources(d, type, 2);
  if (saturate) {
    if (!(type == Type{Type::Signed, 32}))
      d.fail("modifier .sat needs type .s32");
    return d.finish(binaryHandler<int32_t, Saturated>);
  }
  if (type.lanes == 2)
    return d.finish(binaryHandler<uint32_t, Packed16<Plain>>);
  d.finish(integerBinary<Plain>(d, type));
}

template <typename T> void mulWideHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  setLanes(w.at<Wide<T>>(i.dst), mask, [=](unsigned l) { return Wide<T>(a[l]) * Wide<T>(b[l]); });
}
template <typename T> void madWideHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  using U = Unsigned<Wide<T>>;
  const U *c = w.at<U>(i.c);
  setLanes(w.at<U>(i.dst), mask, [=](unsigned l) { return U(Wide<T>(a[l]) * Wide<T>(b[l])) + c[l]; });
}

Type widened(Type type) { return {type.kind, uint16_t(type.bits * 2)}; }

template <bool Mad> void decodeWide(Decoder &d, Type type) {
  d.expectOperands(Mad ? 4 : 3, Mad ? 4 : 3);
  d.inst.dst = d.destination(0, widened(type));
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  if (Mad)
    d.inst.c = d.source(3, widened(type));
  if (type.bits == 64)
    d.fail("modifier .wide needs a type of 16 or 32 bits");
  d.finish(forInteger(d, type, [](auto v) -> Handler {
    using T = decltype(v);
    if constexpr (sizeof(T) < 8) {
      if constexpr (Mad)
        return madWideHandler<T>;
      else
        return mulWideHandler<T>;
    }
    return nullptr;
  }));
}

void decodeMul(Decoder &d) {
  if (d.take("wide"))
    return decodeWide<false>(d, d.takeType());
  bool hi = d.take("hi"), lo = d.take("lo");
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatArithmetic(d, type);
  if (!hi && !lo)
    d.fail("expected .lo, .hi or .wide");
  decodeSources(d, type, 2);
  d.finish(hi ? integerBinary<Hi>(d, type) : integerBinary<Lo>(d, type));
}

void decodeMad(Decoder &d) {
  for (const std::string &mod : d.statement().mods)
    if (mod == "cc")
      return decodeProductCarry(d, false);
  if (d.take("wide"))
    return decodeWide<true>(d, d.takeType());
  bool hi = d.take("hi"), lo = d.take("lo");
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatArithmetic(d, type);
  if (!hi && !lo)
    d.fail("expected .lo, .hi or .wide");
  decodeSources(d, type, 3);
  d.finish(hi ? integerTernary<MadHi>(d, type) : integerTernary<MadLo>(d, type));
}

/// mul24 and mad24: the low 24 bits of the operands.
template <bool Mad, bool High, typename T> struct Product24 {
  static T product(T a, T b) {
    auto wide = Wide<T>(T(Unsigned<T>(a) << 8) >> 8) * Wide<T>(T(Unsigned<T>(b) << 8) >> 8);
    return T(High ? wide >> 16 : wide);
  }
  template <typename U> static U apply(U a, U b) { return product(a, b); }
  template <typename U> static U apply(U a, U b, U c) { return Add::apply(product(a, b), c); }
};

template <bool Mad> void decodeProduct24(Decoder &d) {
  bool hi = d.take("hi");
  if (!hi)
    d.require("lo");
  Type type = d.takeType();
  decodeSources(d, type, Mad ? 3 : 2);
  if (type.bits != 32)
    d.fail("expected .u32 or .s32");
  auto pick = [&](auto v) -> Handler {
    using T = decltype(v);
    if constexpr (Mad)
      return hi ? ternaryHandler<T, Product24<true, true, T>> : ternaryHandler<T, Product24<true, false, T>>;
    else
      return hi ? binaryHandler<T, Product24<false, true, T>> : binaryHandler<T, Product24<false, false, T>>;
  };
  d.finish(type.kind == Type::Signed ? pick(int32_t()) : pick(uint32_t()));
}

template <typename F> void decodeBinary(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 2);
  d.finish(integerBinary<F>(d, type));
}

void decodeDiv(Decoder &d) {
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatArithmetic(d, type);
  decodeSources(d, type, 2);
  d.finish(integerBinary<Div>(d, type));
}

template <typename F> void decodeMinMax(Decoder &d) {
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatMinMax(d, type);
  decodeSources(d, type, 2);
  if (type.lanes == 2)
    return d.finish(type.kind == Type::Signed ? binaryHandler<int32_t, Packed16<F>>
                                              : binaryHandler<uint32_t, Packed16<F>>);
  d.finish(integerBinary<F>(d, type));
}

template <typename F> void decodeNegAbs(Decoder &d) {
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatArithmetic(d, type);
  decodeSources(d, type, 1);
  d.finish(integerUnary<F>(d, type));
}

void decodeSad(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 3);
  d.finish(integerTernary<Sad>(d, type));
}

enum Comparison { Eq, Ne, Lt, Le, Gt, Ge };

/// setp p|q = (a cmp b) op c. aux: comparison; imm: 0 none, 1 and, 2 or, 3 xor.
template <typename T> uint32_t compare(const T *a, const T *b, uint32_t comparison) {
  switch (comparison) {
  case Eq: return maskOf([=](unsigned l) { return a[l] == b[l]; });
  case Ne: return maskOf([=](unsigned l) { return a[l] != b[l]; });
  case Lt: return maskOf([=](unsigned l) { return a[l] < b[l]; });
  case Le: return maskOf([=](unsigned l) { return a[l] <= b[l]; });
  case Gt: return maskOf([=](unsigned l) { return a[l] > b[l]; });
  default: return maskOf([=](unsigned l) { return a[l] >= b[l]; });
  }
}

template <typename T> void setpHandler(Warp &w, const Inst &i, uint32_t mask) {
  storeComparison(w, i, mask, compare(w.at<T>(i.a), w.at<T>(i.b), i.aux));
}

} // namespace

void storeComparison(Warp &w, const Inst &i, uint32_t mask, uint32_t result) {
  auto combine = [&](uint32_t value) {
    uint32_t other = i.c == kNone ? 0 : w.mask(i.c);
    if (i.flag)
      other = ~other;
    return i.imm == 1 ? value & other : i.imm == 2 ? value | other : i.imm == 3 ? value ^ other : value;
  };
  uint32_t first = combine(result), second = combine(~result);
  if (i.dst != kNone)
    w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (first & mask);
  if (i.d != kNone)
    w.mask(i.d) = (w.mask(i.d) & ~mask) | (second & mask);
}

void decodeCompareOperands(Decoder &d, Type type) {
  d.inst.imm = d.takeOneOf({"and", "or", "xor"}) + 1;
  d.expectOperands(d.inst.imm ? 4 : 3, d.inst.imm ? 4 : 3);
  const Operand &result = d.operand(0);
  Type pred{Type::Pred, 1};
  if (result.form == Operand::Pair) {
    d.inst.dst = d.destination(result.parts[0], pred);
    d.inst.d = d.destination(result.parts[1], pred);
  } else {
    d.inst.dst = d.destination(result, pred);
  }
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  if (d.inst.imm) {
    d.inst.c = d.predicate(3);
    d.inst.flag = d.operand(3).negated;
  }
}

namespace {

void decodeSetp(Decoder &d) {
  Type type = d.takeType();
  if (type.isFloat())
    return decodeFloatCompare(d, type);
  int comparison = d.takeOneOf({"eq", "ne", "lt", "le", "gt", "ge"});
  if (comparison < 0) {
    static const int same[] = {Lt, Le, Gt, Ge};
    int unsignedComparison = d.takeOneOf({"lo", "ls", "hi", "hs"});
    if (unsignedComparison < 0)
      d.fail("expected a comparison");
    comparison = same[unsignedComparison];
    type.kind = Type::Unsigned;
  }
  decodeCompareOperands(d, type);
  d.inst.aux = uint32_t(comparison);
  d.finish(forInteger(d, type, [](auto v) -> Handler { return setpHandler<decltype(v)>; }));
}

} // namespace

void addIntegerOps(DecodeTable &table) {
  table["add"] = decodeAddSub<Add, AddSat, false>;
  table["sub"] = decodeAddSub<Sub, SubSat, true>;
  table["addc"] = [](Decoder &d) { decodeCarry<false>(d, true); };
  table["subc"] = [](Decoder &d) { decodeCarry<true>(d, true); };
  table["mul"] = decodeMul;
  table["mad"] = decodeMad;
  table["madc"] = [](Decoder &d) { decodeProductCarry(d, true); };
  table["mul24"] = decodeProduct24<false>;
  table["mad24"] = decodeProduct24<true>;
  table["div"] = decodeDiv;
  table["rem"] = decodeBinary<Rem>;
  table["min"] = decodeMinMax<Min>;
  table["max"] = decodeMinMax<Max>;
  table["neg"] = decodeNegAbs<Neg>;
  table["abs"] = decodeNegAbs<Abs>;
  table["sad"] = decodeSad;
  table["setp"] = decodeSetp;
}

} // namespace fakegpu

//===- BitOps.cpp - Moves, logic, shifts and bit fields ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Arithmetic.h"
#include "ops/Registry.h"

#include <algorithm>

namespace fakegpu {
namespace {

struct And { template <typename T> static T apply(T a, T b) { return T(a & b); } };
struct Or { template <typename T> static T apply(T a, T b) { return T(a | b); } };
struct Xor { template <typename T> static T apply(T a, T b) { return T(a ^ b); } };
struct Not { template <typename T> static T apply(T a) { return T(~a); } };
struct CNot { template <typename T> static T apply(T a) { return T(a == 0); } };
struct Copy { template <typename T> static T apply(T a) { return a; } };

template <typename F> void logicOnPredicates(Warp &w, const Inst &i, uint32_t mask) {
  uint32_t value = F::apply(w.mask(i.a), w.mask(i.b));
  w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (value & mask);
}
void notOnPredicates(Warp &w, const Inst &i, uint32_t mask) {
  w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (~w.mask(i.a) & mask);
}
void movePredicate(Warp &w, const Inst &i, uint32_t mask) {
  w.mask(i.dst) = (w.mask(i.dst) & ~mask) | (w.mask(i.a) & mask);
}

template <typename F> void decodeLogic(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 2);
  d.finish(type.kind == Type::Pred ? logicOnPredicates<F> : integerBinary<F>(d, type));
}
void decodeNot(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 1);
  d.finish(type.kind == Type::Pred ? notOnPredicates : integerUnary<Not>(d, type));
}
void decodeCNot(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 1);
  d.finish(integerUnary<CNot>(d, type));
}

/// Shifts clamp their amount to the width.
template <typename T, bool Left> void shiftHandler(Warp &w, const Inst &i, uint32_t mask) {
  constexpr unsigned kBits = sizeof(T) * 8;
  const T *a = w.at<T>(i.a);
  const auto *b = w.at<uint32_t>(i.b);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) {
    unsigned n = b[l];
    if (Left)
      return n >= kBits ? T(0) : T(Unsigned<T>(a[l]) << (n & (kBits - 1)));
    if (n >= kBits)
      return std::is_signed<T>::value ? T(a[l] >> (kBits - 1)) : T(0);
    return T(a[l] >> n);
  });
}

template <bool Left> void decodeShift(Decoder &d) {
  Type type = d.takeType();
  d.expectOperands(3, 3);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, {Type::Unsigned, 32});
  d.finish(forInteger(d, type, [](auto v) -> Handler { return shiftHandler<decltype(v), Left>; }));
}

/// shf: a funnel of two words. imm: bit 0 left, bit 1 wrap.
void funnelHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  bool left = i.imm & 1, wrap = i.imm & 2;
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    unsigned n = wrap ? c[l] & 31 : std::min(c[l], 32u);
    uint64_t both = uint64_t(b[l]) << 32 | a[l];
    return left ? uint32_t((both << n) >> 32) : uint32_t(both >> n);
  });
}
void decodeFunnel(Decoder &d) {
  bool left = d.take("l");
  if (!left)
    d.require("r");
  bool wrap = d.take("wrap");
  if (!wrap)
    d.require("clamp");
  d.inst.imm = left | wrap << 1;
  decodeSources(d, d.takeType(), 3);
  d.finish(funnelHandler);
}

template <typename T> void bfeHandler(Warp &w, const Inst &i, uint32_t mask) {
  constexpr unsigned kBits = sizeof(T) * 8;
  const T *a = w.at<T>(i.a);
  const auto *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) {
    unsigned pos = b[l] & 255, len = c[l] & 255;
    T value = a[l];
    T sign = 0;
    if (std::is_signed<T>::value && len)
      sign = T(value >> std::min(pos + len - 1, kBits - 1)) & 1 ? T(-1) : T(0);
    if (!len)
      return T(0);
    Unsigned<T> bits = pos >= kBits ? Unsigned<T>(sign) : Unsigned<T>(value >> pos);
    if (len >= kBits)
      return T(bits);
    Unsigned<T> low = (Unsigned<T>(1) << len) - 1;
    return T((bits & low) | (Unsigned<T>(sign) & ~low));
  });
}
void decodeBfe(Decoder &d) {
  Type type = d.takeType(), word{Type::Unsigned, 32};
  d.expectOperands(4, 4);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, word);
  d.inst.c = d.source(3, word);
  d.finish(forInteger(d, type, [](auto v) -> Handler { return bfeHandler<decltype(v)>; }));
}

template <typename T> void bfiHandler(Warp &w, const Inst &i, uint32_t mask) {
  constexpr unsigned kBits = sizeof(T) * 8;
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  const auto *c = w.at<uint32_t>(i.c), *n = w.at<uint32_t>(i.d);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) {
    unsigned pos = c[l] & 255, len = n[l] & 255;
    if (pos >= kBits || !len)
      return b[l];
    T low = len >= kBits ? T(~T(0)) : T((T(1) << len) - 1);
    T field = T(low << pos);
    return T((b[l] & ~field) | (T(a[l] << pos) & field));
  });
}
void decodeBfi(Decoder &d) {
  Type type = d.takeType(), word{Type::Unsigned, 32};
  d.expectOperands(5, 5);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  d.inst.c = d.source(3, word);
  d.inst.d = d.source(4, word);
  d.finish(type.bits == 64 ? bfiHandler<uint64_t> : bfiHandler<uint32_t>);
}

void lop3Handler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  uint32_t table = uint32_t(i.imm);
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    uint32_t result = 0;
    for (unsigned k = 0; k < 8; ++k)
      if (table >> k & 1)
        result |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    return result;
  });
}
void decodeLop3(Decoder &d) {
  Type type = d.takeType();
  d.expectOperands(5, 5);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  d.inst.c = d.source(3, type);
  auto table = d.integer(d.operand(4));
  if (!table || *table > 255)
    d.fail("expected a table from 0 to 255");
  d.inst.imm = int64_t(*table);
  d.finish(lop3Handler);
}

/// prmt picks bytes of {b, a}. aux: the mode.
void prmtHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  uint32_t mode = i.aux;
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    uint64_t bytes = uint64_t(b[l]) << 32 | a[l];
    uint32_t result = 0, s = c[l] & 3;
    for (uint32_t k = 0; k < 4; ++k) {
      uint32_t pick;
      bool sign = false;
      switch (mode) {
      case 1: pick = s + k; break;                           // f4e
      case 2: pick = (s - k) & 7; break;                     // b4e
      case 3: pick = s; break;                               // rc8
      case 4: pick = std::max(s, k); break;                  // ecl
      case 5: pick = std::min(s, k); break;                  // ecr
      case 6: pick = (s & 1) * 2 + (k & 1); break;           // rc16
      default: pick = c[l] >> (4 * k) & 7, sign = c[l] >> (4 * k + 3) & 1; break;
      }
      auto byte = uint8_t(bytes >> (pick * 8));
      if (sign)
        byte = byte & 128 ? 255 : 0;
      result |= uint32_t(byte) << (8 * k);
    }
    return result;
  });
}
void decodePrmt(Decoder &d) {
  d.inst.aux = uint32_t(d.takeOneOf({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}) + 1);
  decodeSources(d, d.takeType(), 3);
  d.finish(prmtHandler);
}

template <typename T, typename F> void countHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a);
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) { return uint32_t(F::apply(a[l])); });
}
struct Popc { template <typename T> static unsigned apply(T a) { return unsigned(__builtin_popcountll(a)); } };
struct Clz {
  template <typename T> static unsigned apply(T a) {
    return a ? unsigned(__builtin_clzll(a)) - (64 - unsigned(sizeof(T)) * 8) : unsigned(sizeof(T)) * 8;
  }
};
template <bool Shift> struct FindLast {
  template <typename T> static unsigned apply(T a) {
    auto bits = Unsigned<T>(std::is_signed<T>::value && a < 0 ? T(~a) : a);
    if (!bits)
      return ~0u;
    unsigned position = 63 - unsigned(__builtin_clzll(bits));
    return Shift ? unsigned(sizeof(T)) * 8 - 1 - position : position;
  }
};
template <typename F> void decodeCount(Decoder &d) {
  Type type = d.takeType();
  d.expectOperands(2, 2);
  d.inst.dst = d.destination(0, {Type::Unsigned, 32});
  d.inst.a = d.source(1, type);
  d.finish(forInteger(d, type, [](auto v) -> Handler { return countHandler<decltype(v), F>; }));
}
void decodeBfind(Decoder &d) {
  d.take("shiftamt") ? decodeCount<FindLast<true>>(d) : decodeCount<FindLast<false>>(d);
}

struct Brev {
  template <typename T> static T apply(T a) {
    T result = 0;
    for (unsigned k = 0; k < sizeof(T) * 8; ++k)
      result |= T((a >> k) & 1) << (sizeof(T) * 8 - 1 - k);
    return result;
  }
};
void decodeBrev(Decoder &d) {
  Type type = d.takeType();
  decodeSources(d, type, 1);
  d.finish(type.bits == 64 ? unaryHandler<uint64_t, Brev> : unaryHandler<uint32_t, Brev>);
}

void fnsHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b);
  const auto *c = w.at<int32_t>(i.c);
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) -> uint32_t {
    int at = int(b[l]), step = c[l] < 0 ? -1 : 1, left = std::abs(c[l]);
    if (!left)
      return at < 32 && (a[l] >> at & 1) ? uint32_t(at) : ~0u;
    for (; at >= 0 && at < 32; at += step)
      if ((a[l] >> at & 1) && --left == 0)
        return uint32_t(at);
    return ~0u;
  });
}
void decodeFns(Decoder &d) {
  decodeSources(d, d.takeType(), 3);
  d.finish(fnsHandler);
}

/// dp4a and dp2a. flag: a signed; aux bit 0: b signed, bit 1: the high half (dp2a).
void dp4aHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  bool signedA = i.flag, signedB = i.aux & 1;
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    uint32_t sum = c[l];
    for (unsigned k = 0; k < 4; ++k) {
      int x = signedA ? int8_t(a[l] >> 8 * k) : uint8_t(a[l] >> 8 * k);
      int y = signedB ? int8_t(b[l] >> 8 * k) : uint8_t(b[l] >> 8 * k);
      sum += uint32_t(x * y);
    }
    return sum;
  });
}
void dp2aHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = w.at<uint32_t>(i.c);
  bool signedA = i.flag, signedB = i.aux & 1;
  unsigned high = i.aux & 2;
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    uint32_t sum = c[l];
    for (unsigned k = 0; k < 2; ++k) {
      int x = signedA ? int16_t(a[l] >> 16 * k) : uint16_t(a[l] >> 16 * k);
      int y = signedB ? int8_t(b[l] >> 8 * (k + high)) : uint8_t(b[l] >> 8 * (k + high));
      sum += uint32_t(x * y);
    }
    return sum;
  });
}
template <bool Two> void decodeDot(Decoder &d) {
  bool hi = Two && d.take("hi");
  if (Two && !hi)
    d.require("lo");
  Type first = d.takeType(), second = d.takeType();
  d.inst.flag = first.kind == Type::Signed;
  d.inst.aux = (second.kind == Type::Signed) | (hi ? 2 : 0);
  decodeSources(d, {Type::Unsigned, 32}, 3);
  d.finish(Two ? dp2aHandler : dp4aHandler);
}

template <typename T> void selpHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  uint32_t p = w.mask(i.c);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) { return (p >> l & 1) ? a[l] : b[l]; });
}
void decodeSelp(Decoder &d) {
  Type type = d.takeType();
  d.expectOperands(4, 4);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  d.inst.c = d.predicate(3);
  type.kind = Type::Bits;
  type.bits = uint16_t(type.width());
  type.lanes = 1;
  d.finish(forInteger(d, type, [](auto v) -> Handler { return selpHandler<decltype(v)>; }));
}
template <typename T, typename C> void slctHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  const C *c = w.at<C>(i.c);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) { return c[l] >= 0 ? a[l] : b[l]; });
}
void decodeSlct(Decoder &d) {
  d.take("ftz");
  Type type = d.takeType(), condition = d.takeType();
  d.expectOperands(4, 4);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  d.inst.b = d.source(2, type);
  d.inst.c = d.source(3, condition);
  bool isFloat = condition.isFloat();
  d.finish(forInteger(d, {Type::Bits, type.bits}, [&](auto v) -> Handler {
    using T = decltype(v);
    return isFloat ? slctHandler<T, float> : slctHandler<T, int32_t>;
  }));
}

/// mov between a register and its parts. regs: the parts, low first; regWidth: bits of a part.
void packHandler(Warp &w, const Inst &i, uint32_t mask) {
  unsigned part = i.regWidth / 8, whole = part * unsigned(i.regs.size());
  bool halves = whole == 16; // 128 bits: the low words of all lanes, then the high ones
  eachLane(mask, [&](unsigned l) {
    for (unsigned k = 0; k < i.regs.size(); ++k) {
      unsigned at = k * part;
      char *to = w.regs + i.dst + (halves ? at / 8 * 8 * kLanes + l * 8 + at % 8 : l * whole + at);
      memcpy(to, w.regs + i.regs[k] + size_t(l) * part, part);
    }
  });
}
void unpackHandler(Warp &w, const Inst &i, uint32_t mask) {
  unsigned part = i.regWidth / 8, whole = part * unsigned(i.regs.size());
  bool halves = whole == 16;
  eachLane(mask, [&](unsigned l) {
    char value[16];
    for (unsigned at = 0; at < whole; at += std::min(whole, 8u))
      memcpy(value + at, w.regs + i.a + (halves ? at * kLanes + l * 8 : l * whole), std::min(whole, 8u));
    for (unsigned k = 0; k < i.regs.size(); ++k)
      memcpy(w.regs + i.regs[k] + size_t(l) * part, value + k * part, part);
  });
}

void readClock(Warp &w, const Inst &i, uint32_t mask) {
  uint64_t now = w.block->cluster->retired + w.retired;
  if (i.aux == 64)
    setLanes(w.at<uint64_t>(i.dst), mask, [=](unsigned) { return now; });
  else
    setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned) { return uint32_t(now); });
}

void move128(Warp &w, const Inst &i, uint32_t mask) {
  for (unsigned half = 0; half < 2; ++half) {
    const auto *a = w.at<uint64_t>(i.a + half * 8 * kLanes);
    setLanes(w.at<uint64_t>(i.dst + half * 8 * kLanes), mask, [=](unsigned l) { return a[l]; });
  }
}

void decodeMov(Decoder &d) {
  Type type = d.takeType();
  d.expectOperands(2, 2);
  bool pack = d.operand(1).form == Operand::Vector, unpack = d.operand(0).form == Operand::Vector;
  if (pack || unpack) {
    auto parts = d.elements(pack ? 1 : 0);
    Type part{Type::Bits, uint16_t(type.width() / parts.size())};
    if (part.bits < 16)
      d.fail("parts of fewer than 16 bits are not supported");
    for (const Operand &o : parts)
      d.inst.regs.push_back(pack ? d.source(o, part) : d.destination(o, part));
    d.inst.regWidth = uint8_t(part.bits);
    if (pack)
      d.inst.dst = d.destination(0, type);
    else
      d.inst.a = d.source(1, type);
    return d.finish(pack ? packHandler : unpackHandler);
  }
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  if (type.kind == Type::Pred)
    return d.finish(movePredicate);
  if (d.inst.flag) { // a clock
    d.inst.aux = type.bits;
    return d.finish(readClock);
  }
  if (type.width() == 128)
    return d.finish(move128);
  d.finish(integerUnary<Copy>(d, {Type::Bits, uint16_t(type.width())}));
}

/// bmsk: a field of c ones from bit b on. szext: sign or zero extension from bit b.
void bmskHandler(Warp &w, const Inst &i, uint32_t mask) {
  const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b);
  bool wrap = i.flag;
  setLanes(w.at<uint32_t>(i.dst), mask, [=](unsigned l) {
    unsigned pos = wrap ? a[l] & 31 : std::min(a[l], 32u), len = wrap ? b[l] & 31 : std::min(b[l], 32u);
    return uint32_t(((uint64_t(1) << len) - 1) << pos);
  });
}
void decodeBmsk(Decoder &d) {
  d.inst.flag = d.take("wrap");
  if (!d.inst.flag)
    d.require("clamp");
  decodeSources(d, d.takeType(), 2);
  d.finish(bmskHandler);
}

} // namespace

void addBitOps(DecodeTable &table) {
  table["and"] = decodeLogic<And>;
  table["or"] = decodeLogic<Or>;
  table["xor"] = decodeLogic<Xor>;
  table["not"] = decodeNot;
  table["cnot"] = decodeCNot;
  table["shl"] = decodeShift<true>;
  table["shr"] = decodeShift<false>;
  table["shf"] = decodeFunnel;
  table["bfe"] = decodeBfe;
  table["bfi"] = decodeBfi;
  table["lop3"] = decodeLop3;
  table["prmt"] = decodePrmt;
  table["popc"] = decodeCount<Popc>;
  table["clz"] = decodeCount<Clz>;
  table["bfind"] = decodeBfind;
  table["brev"] = decodeBrev;
  table["fns"] = decodeFns;
  table["dp4a"] = decodeDot<false>;
  table["dp2a"] = decodeDot<true>;
  table["selp"] = decodeSelp;
  table["slct"] = decodeSlct;
  table["mov"] = decodeMov;
  table["bmsk"] = decodeBmsk;
}

} // namespace fakegpu

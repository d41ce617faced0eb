//===- AtomicOps.cpp - Atomic operations on global and shared memory ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "interp/Linker.h"
#include "ops/Arithmetic.h"
#include "ops/MemoryAccess.h"
#include "ops/Numeric.h"
#include "ops/Registry.h"

#include <algorithm>

namespace fakegpu {
namespace {

enum Operation { Add, Min, Max, And, Or, Xor, Exch, Cas, Inc, Dec };

template <typename T> T combine(Operation op, T old, T b, T c) {
  switch (op) {
  case Add: return T(old + b);
  case Min: return std::min(old, b);
  case Max: return std::max(old, b);
  case Exch: return b;
  case Cas: return old == b ? c : old;
  default: break;
  }
  if constexpr (std::is_integral<T>::value) {
    switch (op) {
    case And: return T(old & b);
    case Or: return T(old | b);
    case Xor: return T(old ^ b);
    case Inc: return old >= b ? T(0) : T(old + 1);
    case Dec: return old == 0 || old > b ? b : T(old - 1);
    default: break;
    }
  }
  return old;
}

/// Lanes take turns from the lowest one.
template <typename T> void atomicHandler(Warp &w, const Inst &i, uint32_t mask) {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  char *pointers[kLanes];
  hostPointers(w, i, mask, sizeof(T), Access::Atomic, pointers);
  auto value = [&](Word bits) { T t; memcpy(&t, &bits, sizeof t); return t; };
  auto word = [&](T t) { Word bits; memcpy(&bits, &t, sizeof t); return bits; };
  eachLane(mask, [&](unsigned l) {
    auto *at = reinterpret_cast<Word *>(pointers[l]);
    Word b = w.at<Word>(i.b)[l], c = i.c == kNone ? 0 : w.at<Word>(i.c)[l];
    Word old = __atomic_load_n(at, __ATOMIC_RELAXED), next;
    do
      next = Operation(i.aux) == Cas ? (old == b ? c : old)
                                     : word(combine<T>(Operation(i.aux), value(old), value(b), value(c)));
    while (!__atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (i.dst != kNone)
      w.at<Word>(i.dst)[l] = old;
  });
}

/// Additions of 16-bit floats, one or two of a word. flag: bf16.
template <typename Word> void atomicHalfHandler(Warp &w, const Inst &i, uint32_t mask) {
  char *pointers[kLanes];
  hostPointers(w, i, mask, sizeof(Word), Access::Atomic, pointers);
  Type type{i.flag ? Type::BFloat : Type::Float, 16};
  eachLane(mask, [&](unsigned l) {
    auto *at = reinterpret_cast<Word *>(pointers[l]);
    Word b = w.at<Word>(i.b)[l], old = __atomic_load_n(at, __ATOMIC_RELAXED), next;
    do {
      next = 0;
      for (unsigned k = 0; k < sizeof(Word) / 2; ++k) {
        double x = decodeFloat(uint16_t(old >> 16 * k), type), y = decodeFloat(uint16_t(b >> 16 * k), type);
        double z = Operation(i.aux) == Add ? addToOdd(x, y) : Operation(i.aux) == Min ? std::fmin(x, y) : std::fmax(x, y);
        next |= Word(encodeFloat(z, type, NearestEven) << 16 * k);
      }
    } while (!__atomic_compare_exchange_n(at, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (i.dst != kNone)
      w.at<Word>(i.dst)[l] = old;
  });
}

Handler handlerOf(Decoder &d, Type type) {
  bool isFloat = type.isFloat();
  if (isFloat && type.bits == 16) {
    d.inst.flag = type.kind == Type::BFloat;
    return type.lanes == 2 ? atomicHalfHandler<uint32_t> : atomicHalfHandler<uint16_t>;
  }
  if (isFloat)
    return type.bits == 64 ? atomicHandler<double> : atomicHandler<float>;
  return forInteger(d, type, [](auto v) -> Handler { return atomicHandler<decltype(v)>; });
}

void decodeAtomic(Decoder &d) {
  bool reduction = d.statement().opcode == "red";
  d.ignore({"relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "noftz"});
  Space space = d.takeSpace();
  if (d.take("async"))
    d.fail("red.async is not supported");
  int operation = d.takeOneOf({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"});
  if (operation < 0)
    d.fail("expected an operation");
  Type type = d.takeType();
  if (type.isFloat() && operation != Add && operation != Exch &&
      !(type.bits == 16 && (operation == Min || operation == Max)))
    d.fail("this operation has no float type");
  size_t count = (reduction ? 2 : 3) + (operation == Cas);
  d.expectOperands(count, count);
  size_t memory = reduction ? 0 : 1;
  d.inst.b = d.source(memory + 1, type);
  if (operation == Cas)
    d.inst.c = d.source(memory + 2, type);
  if (!reduction)
    d.inst.dst = d.destination(0, type);
  d.address(memory, space);
  d.inst.aux = uint32_t(operation);
  d.finish(handlerOf(d, type));
}

} // namespace

void addAtomicOps(DecodeTable &table) {
  table["atom"] = decodeAtomic;
  table["red"] = decodeAtomic;
}

} // namespace fakegpu

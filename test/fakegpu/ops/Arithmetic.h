//===- Arithmetic.h - Handlers by type ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_OPS_ARITHMETIC_H
#define FAKEGPU_OPS_ARITHMETIC_H

#include "interp/Decoder.h"
#include "interp/Warp.h"

#include <type_traits>

namespace fakegpu {

template <typename T, typename F> void unaryHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) { return T(F::apply(a[l])); });
}

template <typename T, typename F> void binaryHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) { return T(F::apply(a[l], b[l])); });
}

template <typename T, typename F> void ternaryHandler(Warp &w, const Inst &i, uint32_t mask) {
  const T *a = w.at<T>(i.a), *b = w.at<T>(i.b), *c = w.at<T>(i.c);
  setLanes(w.at<T>(i.dst), mask, [=](unsigned l) { return T(F::apply(a[l], b[l], c[l])); });
}

/// Calls f with a value of the C++ type of an integer type of PTX.
template <typename F> Handler forInteger(Decoder &d, Type type, F f) {
  bool isSigned = type.kind == Type::Signed;
  if (type.lanes == 1 && !type.isFloat() && type.kind != Type::Pred) {
    switch (type.bits) {
    case 16: return isSigned ? f(int16_t()) : f(uint16_t());
    case 32: return isSigned ? f(int32_t()) : f(uint32_t());
    case 64: return isSigned ? f(int64_t()) : f(uint64_t());
    default: break;
    }
  }
  d.fail("this type is not supported here");
}

template <typename F> Handler integerUnary(Decoder &d, Type t) {
  return forInteger(d, t, [](auto v) -> Handler { return unaryHandler<decltype(v), F>; });
}
template <typename F> Handler integerBinary(Decoder &d, Type t) {
  return forInteger(d, t, [](auto v) -> Handler { return binaryHandler<decltype(v), F>; });
}
template <typename F> Handler integerTernary(Decoder &d, Type t) {
  return forInteger(d, t, [](auto v) -> Handler { return ternaryHandler<decltype(v), F>; });
}

inline void decodeSources(Decoder &d, Type type, size_t count) {
  d.expectOperands(count + 1, count + 1);
  d.inst.dst = d.destination(0, type);
  d.inst.a = d.source(1, type);
  if (count > 1)
    d.inst.b = d.source(2, type);
  if (count > 2)
    d.inst.c = d.source(3, type);
}

/// The type of twice the width.
template <typename T> struct WideOf;
template <> struct WideOf<int16_t> { using type = int32_t; };
template <> struct WideOf<uint16_t> { using type = uint32_t; };
template <> struct WideOf<int32_t> { using type = int64_t; };
template <> struct WideOf<uint32_t> { using type = uint64_t; };
template <> struct WideOf<int64_t> { using type = __int128; };
template <> struct WideOf<uint64_t> { using type = unsigned __int128; };
template <typename T> using Wide = typename WideOf<T>::type;
template <typename T> using Unsigned = std::make_unsigned_t<T>;

} // namespace fakegpu

#endif

//===- Elements.h - elements of arrays as numbers ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_ELEMENTS_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_ELEMENTS_H

#include "meshwright/runtime/include/Types.h"

namespace meshwright::rt {

/// The elements of types that C++ does not have.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

/// An element in the type in which sums of it are taken.
inline float asNumber(float x) { return x; }
inline double asNumber(double x) { return x; }
inline float asNumber(Bf16 x) { return bf16ToFloat(x.bits); }
inline float asNumber(F16 x) { return f16ToFloat(x.bits); }

/// The index at a position of an array of i32 or i64.
inline int64_t loadIndex(int64_t type, const void *data, int64_t position) {
  return DType(type) == DType::I32 ? static_cast<const int32_t *>(data)[position]
                                   : static_cast<const int64_t *>(data)[position];
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_ELEMENTS_H

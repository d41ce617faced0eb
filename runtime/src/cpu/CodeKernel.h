//===- CodeKernel.h - weights of codes, in vectors --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once for each instruction set, as ReduceKernel.h says.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_CODEKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_CODEKERNEL_H

#include <cstdint>

namespace meshwright::rt {

/// The kinds of codes that there are kernels for. Two of the last one share a byte, the even one in the
/// low half.
enum class CodeKind { E4M3, E5M2, I8, E2M1 };

/// Rows of codes in blocks: `columns` codes a row, `block` codes of a row share a scale.
struct CodeRows {
  CodeKind format;
  int64_t columns, block;
  const uint8_t *codes;
  /// The number of each code without a scale; of E2M1 of each byte's low half in the first 16.
  const float *numbers;
  /// The numbers without a sign as bf16: the high bytes of 128 of them, and then the low ones. Of E2M1 the
  /// 16 numbers with their signs, each with its two bytes.
  const uint8_t *halves;
};

/// The most rows of `a` that a product takes at once.
constexpr int64_t kMostCodeRows = 4;

/// c[i] = the sum of a[i, k] times the number of code (row, k) times the scale of its block, for up to
/// kMostCodeRows rows of `a`, which are `columns` long. `pairs` has the same rows with the even columns of
/// each 2 * lanes before the odd ones, and is read for E2M1. `scales` are those of the row.
using DotCodes = void (*)(const CodeRows &what, int64_t row, const float *scales, const float *a,
                          const float *pairs, int64_t rows, float *c);
/// The same for rows of `a` in bf16, in the order of `orderBf16`.
using DotBf16 = void (*)(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a,
                         int64_t rows, float *c);
/// Writes a row of bf16 in the order in which products of bf16 read it.
using OrderBf16 = void (*)(const CodeRows &what, const uint16_t *a, uint16_t *to);
/// Returns true if there are products of bf16 for such codes and blocks: whole vectors of 64 bytes, and
/// sums that belong to one block or to a fixed part of a vector.
inline bool multipliesBf16(const CodeRows &what) {
  if (what.format == CodeKind::E2M1)
    return what.block == 32 && what.columns % 128 == 0;
  return (what.block % 64 == 0 || what.block >= what.columns) && what.columns % 64 == 0;
}

/// Writes `count` numbers of a row, from a column on that is even, times their scales. `scales` are
/// those of the row, from the block of that column on.
using DecodeCodes = void (*)(const CodeRows &what, int64_t row, const float *scales, int64_t column,
                             int64_t count, float *to);

/// Writes 2^(code - 127) for each of `count` codes of E8M0, and NaN for 255.
using WidenPowers = void (*)(const uint8_t *codes, int64_t count, float *to);

/// Rounds `count` numbers to bf16, to the nearest and ties to even. Instructions for that, and products of
/// bf16, take numbers below 2^-126 as 0.
using RoundBf16 = void (*)(const float *from, int64_t count, uint16_t *to);

/// Writes a matrix of words transposed: to[j * kTurnStride + i] = from[i * columns + j], for up to kTurnRows
/// rows.
using TurnWords = void (*)(const uint32_t *from, int64_t rows, int64_t columns, uint32_t *to);
constexpr int64_t kTurnRows = 16, kTurnStride = 64;

/// The same functions for bf16, on processors with instructions for products of it.
void dotCodesBf16(const CodeRows &what, int64_t row, const float *scales, const uint16_t *a, int64_t rows,
                  float *c);
void orderCodesBf16(const CodeRows &what, const uint16_t *a, uint16_t *to);
void roundCodesBf16(const float *from, int64_t count, uint16_t *to);

/// The kernels of an instruction set, and the lanes of its vectors; 0 for plain loops.
struct CodeKernels {
  DotCodes dot;
  DecodeCodes decode;
  WidenPowers widenPowers;
  RoundBf16 roundBf16;
  DotBf16 dotBf16;
  OrderBf16 orderBf16;
  TurnWords turn;
  int64_t lanes;
};

CodeKernels getCodesBaseline();
CodeKernels getCodesAvx2();
CodeKernels getCodesAvx512();
CodeKernels getCodesAvx512Bf16();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_CODEKERNEL_H

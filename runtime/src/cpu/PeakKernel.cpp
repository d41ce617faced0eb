//===- PeakKernel.cpp - as many products and sums as can be ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once for each instruction set: MESHWRIGHT_PEAK names the function,
// MESHWRIGHT_VECTOR the bytes of a vector.
//
//===----------------------------------------------------------------------===//

#include "PeakKernel.h"

typedef float Vector __attribute__((vector_size(MESHWRIGHT_VECTOR)));

double meshwright::rt::MESHWRIGHT_PEAK(int64_t rounds, float *sink) {
  // Enough independent sums to fill two units with a latency of four or five cycles.
  constexpr int64_t sums = 12;
  constexpr int64_t lanes = MESHWRIGHT_VECTOR / sizeof(float);
  Vector sum[sums], factor = {}, term = {};
  // A value that the compiler cannot know.
  factor += *sink * 0.25f + 0.5f;
  term += *sink * 0.5f + 0.25f;
  for (int64_t i = 0; i < sums; ++i)
    sum[i] = term + float(i);
  for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
    for (int64_t i = 0; i < sums; ++i)
      sum[i] = sum[i] * factor + term;
  for (int64_t i = 1; i < sums; ++i)
    sum[0] += sum[i];
  *sink = sum[0][0];
  return 2.0 * lanes * sums * double(rounds);
}

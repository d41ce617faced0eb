//===- SmallProduct.cpp - products without a library ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SmallProduct.h"

namespace meshwright::rt {

static SmallProductKernel chooseMultiply() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return multiplyAvx2;
#endif
  return multiplyBaseline;
}

void multiplySmall(const PlainProduct<float> &product) {
  static const SmallProductKernel kernel = chooseMultiply();
  kernel(product);
}

void multiplyDouble(const PlainProduct<double> &p) {
  for (int64_t m = 0; m < p.m; ++m) {
    double *row = p.c + m * p.n;
    const double *left = p.a + m * p.rowOfA;
    // The inner loop goes along the dimension of b that is contiguous.
    bool sumsFirst = p.rowOfB == 1;
    for (int64_t n = 0; n < p.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; sumsFirst && k < p.k; ++k)
        sum += left[k * p.columnOfA] * p.b[k + n * p.columnOfB];
      row[n] = sum + (p.bias ? p.bias[n] : 0);
    }
    for (int64_t k = 0; !sumsFirst && k < p.k; ++k)
      for (int64_t n = 0; n < p.n; ++n)
        row[n] += left[k * p.columnOfA] * p.b[k * p.rowOfB + n * p.columnOfB];
  }
}

} // namespace meshwright::rt

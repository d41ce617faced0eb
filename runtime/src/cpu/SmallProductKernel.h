//===- SmallProductKernel.h - products too small for a library --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H

#include <cstdint>

namespace meshwright::rt {

/// A product of f32 matrices: element (i, j) of a matrix is at i * row + j * column.
struct SmallProduct {
  int64_t m, n, k;
  const float *a;
  int64_t rowOfA, columnOfA;
  const float *b;
  int64_t rowOfB, columnOfB;
  /// Null for none.
  const float *bias;
  /// Dense rows.
  float *c;
};

/// The most steps of a sum. Generated products add sums of this length, too.
constexpr int64_t kSmallSteps = 128;

/// Each element is one sum over k in order, and the bias is added last, as in generated products of more than three
/// rows. So it does not show in the bits which of the two computes a product.
using SmallProductKernel = void (*)(const SmallProduct &product);

// One for each instruction set.
void multiplyBaseline(const SmallProduct &product);
void multiplyAvx2(const SmallProduct &product);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H

//===- SmallProductKernel.h - products without a library --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H

#include <cstdint>

namespace meshwright::rt {

/// A product of two matrices: element (i, j) of a matrix is at i * row + j * column.
template <typename T> struct PlainProduct {
  int64_t m, n, k;
  const T *a;
  int64_t rowOfA, columnOfA;
  const T *b;
  int64_t rowOfB, columnOfB;
  /// Null for none.
  const T *bias;
  /// Dense rows.
  T *c;
};

/// The most steps of a sum. Generated products add sums of this length, too.
constexpr int64_t kSmallSteps = 128;

/// Each element is one sum over k in order, and the bias is added last, as in generated products of more than three
/// rows. So it does not show in the bits which of the two computes a product.
using SmallProductKernel = void (*)(const PlainProduct<float> &product);

// One for each instruction set.
void multiplyBaseline(const PlainProduct<float> &product);
void multiplyAvx2(const PlainProduct<float> &product);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCTKERNEL_H

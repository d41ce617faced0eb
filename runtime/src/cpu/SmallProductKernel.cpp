//===- SmallProductKernel.cpp - products too small for a library ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once for each instruction set: MESHWRIGHT_MULTIPLY names the
// function, MESHWRIGHT_VECTOR the bytes of a vector.
//
//===----------------------------------------------------------------------===//

#include "SmallProductKernel.h"

namespace {

typedef float Vector __attribute__((vector_size(MESHWRIGHT_VECTOR)));
constexpr int64_t kLanes = MESHWRIGHT_VECTOR / sizeof(float), kVectors = 2, kColumns = kLanes * kVectors;
/// Rows whose sums are in registers at once.
constexpr int64_t kRows = 4;

/// Sums `rows` rows from `row` on. `panel` has the columns of b, row by row.
template <int64_t rows>
void multiplyRows(const meshwright::rt::PlainProduct<float> &p, int64_t row, const Vector *panel, int64_t column,
                  int64_t columns) {
  Vector sums[rows][kVectors] = {};
  for (int64_t k = 0; k < p.k; ++k)
#pragma GCC unroll 4
    for (int64_t i = 0; i < rows; ++i) {
      float factor = p.a[(row + i) * p.rowOfA + k * p.columnOfA];
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v)
        sums[i][v] += factor * panel[k * kVectors + v];
    }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float sum = sums[i][j / kLanes][j % kLanes];
      p.c[(row + i) * p.n + column + j] = p.bias ? sum + p.bias[column + j] : sum;
    }
}

} // namespace

void meshwright::rt::MESHWRIGHT_MULTIPLY(const PlainProduct<float> &p) {
  Vector panel[kSmallSteps * kVectors];
  for (int64_t column = 0; column < p.n; column += kColumns) {
    int64_t columns = p.n - column < kColumns ? p.n - column : kColumns;
    for (int64_t k = 0; k < p.k; ++k)
      for (int64_t j = 0; j < kColumns; ++j)
        panel[k * kVectors + j / kLanes][j % kLanes] =
            j < columns ? p.b[k * p.rowOfB + (column + j) * p.columnOfB] : 0.0f;
    int64_t row = 0;
    for (; row + kRows <= p.m; row += kRows)
      multiplyRows<kRows>(p, row, panel, column, columns);
    for (; row < p.m; ++row)
      multiplyRows<1>(p, row, panel, column, columns);
  }
}

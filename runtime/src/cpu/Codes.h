//===- Codes.h - weights of codes and scales --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_CODES_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_CODES_H

#include "CodeKernel.h"
#include "Gemm.h"

#include "meshwright-c/Runtime.h"

#include <vector>

namespace meshwright::rt {

class Workers;

/// One matrix of codes. It does not own its memory.
class CodedMatrix final : public StoredMatrix {
public:
  CodedMatrix(const mw_rt_codes &what, int64_t matrix, const void *codes, const void *scales);

  void decode(const FormBlock &block, DType type, void *to) const override;
  /// c = a w^T (+ bias) for a few rows: a is [rows, columns of the matrix], c is [rows, rows of the
  /// matrix], and both have the type of the bias and `result`.
  void multiplyFew(int64_t rows, DType type, const void *a, const void *bias, DType result, void *c,
                   Workers &workers) const;

private:
  /// The scales of the blocks of a row.
  void readScales(int64_t row, std::vector<float> &to) const;

  const mw_rt_codes what;
  CodeRows codes;
  const char *scales;
};

/// The most rows for which `multiplyFew` is faster than the library.
constexpr int64_t kFewCodeRows = 8;

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_CODES_H

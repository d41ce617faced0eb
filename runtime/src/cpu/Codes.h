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
  /// The most rows of a type for which `multiplyFew` is faster than the library.
  int64_t getFewRows(DType type) const;
  /// c = a w^T (+ bias) for a few rows: a is [rows, columns of the matrix], c is [rows, rows of the
  /// matrix], and both have the type of the bias and `result`.
  void multiplyFew(int64_t rows, DType type, const void *a, const void *bias, DType result, void *c,
                   Workers &workers) const;

private:
  /// Returns true if rows of the type are multiplied as bf16.
  bool readsBf16(DType type) const;
  /// The blocks of a row.
  int64_t getBlocks() const;
  /// Asks for the codes that are decoded after a row of a block: the next ones of the row, or the first ones
  /// of the block below.
  void askBehind(const FormBlock &block, int64_t row) const;
  /// Reads so many scales of all, which have the order of their blocks.
  void readScales(int64_t first, int64_t count, float *to) const;

  const mw_rt_codes what;
  CodeRows codes;
  const char *scales;
};

/// Rows of codes with the tables of their kind.
CodeRows getCodeRows(CodeKind kind, int64_t columns, int64_t block, const uint8_t *codes);
/// The kernels for the processor at hand.
const CodeKernels &getCodeKernels();

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_CODES_H

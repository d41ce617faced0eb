//===- Gemm.h - matrix products by a library --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H

#include "meshwright/runtime/include/Types.h"

#include <memory>
#include <string>

namespace meshwright::rt {

/// C[i] = A[i] B[i] (+ bias) for a batch of dense row-major matrices that follow one
/// another; with `sharedA` or `sharedB` all products read the same one.
struct Product {
  DType in, out;
  int64_t m, n, k, batch;
  bool transposeA, transposeB, sharedA, sharedB, bias;
};

/// The products that one rank has met, prepared.
class GemmCache {
public:
  GemmCache();
  ~GemmCache();
  /// False, with an error, when the library fails. `in` is f32, bf16 or f64;
  /// `out` is the same, or f32.
  bool multiply(const Product &product, const void *a, const void *b, const void *bias, void *c,
                std::string &error);
  /// Whether the library multiplies bf16 on this processor.
  bool hasBf16();

private:
  struct State;
  std::unique_ptr<State> state;
};

/// Threads that libraries may use on behalf of the calling thread.
void setThreadsOfLibraries(int count);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_GEMM_H

//===- GemmShape.h - sizes that a matrix product implies --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_RANKS_GEMMSHAPE_H
#define MESHWRIGHT_RUNTIME_SRC_RANKS_GEMMSHAPE_H

#include "meshwright-c/Runtime.h"

#include <cstdint>

namespace meshwright::rt {

/// Matrices of the result.
inline int64_t batchOf(const mw_rt_gemm &what) {
  int64_t batch = 1;
  for (int64_t d = 0; d < what.batch_rank; ++d)
    batch *= what.batch[d];
  return batch;
}

/// Matrices of the operand with these strides.
inline int64_t matricesOf(const mw_rt_gemm &what, const int64_t *strides) {
  int64_t last = 0;
  for (int64_t d = 0; d < what.batch_rank; ++d)
    last += (what.batch[d] - 1) * strides[d];
  return last + 1;
}

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_RANKS_GEMMSHAPE_H

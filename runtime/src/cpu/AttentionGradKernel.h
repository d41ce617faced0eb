//===- AttentionGradKernel.h - gradients of attention, in vectors -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once for each instruction set, without functions of the standard library (see
// ReduceKernel.h).
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_ATTENTIONGRADKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_ATTENTIONGRADKERNEL_H

#include "meshwright-c/Runtime.h"

namespace meshwright::rt {

/// Queries and keys of a block.
constexpr int64_t kAttentionGradBlock = 64;

/// A call, and how it uses a workspace.
struct AttentionGrad {
  const mw_rt_attention_grad &what;
  const void *const *inputs;
  void *const *outputs;
  /// Features of queries and of values, rounded up to the longest vector of any processor.
  int64_t features, valueFeatures;
};

/// Numbers in the workspace of a thread: of a block of queries the queries, the cotangents of
/// their results and their gradients; of a block of keys the keys, also transposed, the values
/// transposed, and the gradients of both; the probabilities of pairs and their cotangents; and two
/// numbers for each query of a head.
static inline int64_t getAttentionGradNumbers(const AttentionGrad &work) {
  constexpr int64_t size = kAttentionGradBlock;
  return size * (5 * work.features + 3 * work.valueFeatures + 2 * size) + 2 * work.what.queries;
}

/// Computes the query heads begin .. end of all rows of the batch. `numbers` are numbers of the
/// arithmetic's type, f32 or f64 for f64: `getAttentionGradNumbers` of them. `places` has an
/// integer for each key and each query.
using AttentionGradKernel = void (*)(const AttentionGrad &work, int64_t begin, int64_t end,
                                     void *numbers, int64_t *places);

void attentionGradBaseline(const AttentionGrad &work, int64_t begin, int64_t end, void *numbers,
                           int64_t *places);
void attentionGradAvx2(const AttentionGrad &work, int64_t begin, int64_t end, void *numbers,
                       int64_t *places);
void attentionGradAvx512(const AttentionGrad &work, int64_t begin, int64_t end, void *numbers,
                         int64_t *places);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_ATTENTIONGRADKERNEL_H

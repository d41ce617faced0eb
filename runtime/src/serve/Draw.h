//===- Draw.h - tokens that are drawn from logits ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_SERVE_DRAW_H
#define MESHWRIGHT_RUNTIME_SRC_SERVE_DRAW_H

#include "meshwright/runtime/include/Types.h"

namespace meshwright::rt {

/// Draws a token from softmax(logits / temperature), for a temperature above 0. The draw depends on
/// the logits, the seed and the position of the new token alone: it is the largest of logits /
/// temperature + noise, whose noise of a token is a function of seed, position and token. A temperature
/// near 0 draws from the largest logits. Returns -1 if a logit is NaN, or all are negative infinity.
int64_t drawToken(DType type, const void *logits, int64_t vocabulary, double temperature,
                  int64_t seed, int64_t position);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_SERVE_DRAW_H

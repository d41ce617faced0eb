//===- DistanceBias.h - biases by the distance of the key -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_DISTANCEBIAS_H
#define MESHWRIGHT_PASSES_SERVE_DISTANCEBIAS_H

#include "meshwright/dialects/Nn/Writer.h"

namespace meshwright {

/// Writes the table of a bias of attention, as `nn.paged_attention` has it: [q_heads, length] if the bias depends on the
/// position of the key less that of the query alone, where the last number is that of the query's own key; or
/// [q_heads, 1, length] if it depends on the position of the key. Its type is that of scores. Null if the bias is
/// another one.
///
/// The bias is read as an expression: ops that compute each pair of positions by itself. The table is this expression
/// for the last query, which sees all distances.
mlir::Value writeDistanceBias(nn::Writer &w, nn::AttentionOp op);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_DISTANCEBIAS_H

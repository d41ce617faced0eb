//===- KeySlopes.h - biases that grow with the key's position ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_KEYSLOPES_H
#define MESHWRIGHT_PASSES_SERVE_KEYSLOPES_H

#include "meshwright/dialects/Nn/Writer.h"

namespace meshwright {

/// Writes the slopes [q_heads] of the bias of attention, in the type of the query, if the bias is
/// slope * key position plus a term that is the same for all keys of a query. Such a term does not
/// change a softmax. Null if the bias is another one.
///
/// The bias is read as an expression: iotas, constants and values without positions, joined by
/// sums, products and casts that do not round positions.
mlir::Value writeKeySlopes(nn::Writer &w, nn::AttentionOp op);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_KEYSLOPES_H

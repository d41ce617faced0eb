//===- MovedRows.h - collectives of rows of experts -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `nn.send_rows` and `nn.return_rows` are collectives: they run on a stream of communication, and the
// schedule starts them and waits for them. Their first operand has the rows. The others, and results behind
// the first, have numbers.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_MOVEDROWS_H
#define MESHWRIGHT_DIALECTS_NN_MOVEDROWS_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright::nn {

/// The attribute of such an op, and of `nn.route`, with the rows that a rank expects to have (i64), for the cost model.
inline constexpr llvm::StringLiteral kExpectedRowsAttr = "nn.expected_rows";

/// The rows that a rank expects to have in a collective that counts them itself, or in a routing, at most the room for
/// them. None for other ops.
std::optional<int64_t> getExpectedRows(mlir::Operation *op);

/// The experts, or groups of experts, of all ranks of which a routed value has rows. None if that is not known.
std::optional<int64_t> getNumGroups(mlir::Value rows);
/// The elements that are expected of rows whose experts, or groups of experts, are a part of `all` on the ranks.
int64_t getExpectedElements(mlir::RankedTensorType rows, int64_t all);

namespace detail {
/// Lets the ops answer as collectives.
void attachMovedRows(mlir::MLIRContext *context);
} // namespace detail

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_MOVEDROWS_H

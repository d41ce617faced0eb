//===- MovedRows.h - rows of experts that move ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_REPORT_MOVEDROWS_H
#define MESHWRIGHT_LIB_REPORT_MOVEDROWS_H

#include "mlir/IR/Operation.h"

namespace meshwright {

/// Returns true if a collective moves rows between ranks whose number depends on the data.
bool movesRows(mlir::Operation *op);

/// The bytes that a rank sends if it has as many rows as there may be, all for other ranks.
int64_t getBytesAtCapacity(mlir::Operation *op);

/// The share of the rows of the cost model that experts take: 1 where nothing limits their choices.
double getLoadShare(mlir::Operation *op);

/// The rows of operand `i` of such a collective that the fullest rank is expected to have. They have `tokens`
/// dimensions of tokens behind that of experts.
int64_t getExpectedRows(mlir::Operation *op, unsigned i, int64_t tokens);

/// The rows of a routing [experts, tokens...] that the fullest rank is expected to have, of `total` experts on all ranks.
/// Null: of those here.
int64_t getExpectedRows(mlir::RankedTensorType routing, mlir::IntegerAttr total, double load);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_REPORT_MOVEDROWS_H

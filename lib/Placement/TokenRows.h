//===- TokenRows.h - tokens of a step stay apart ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_TOKENROWS_H
#define MESHWRIGHT_LIB_PLACEMENT_TOKENROWS_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"

namespace meshwright {

/// Proves for a step of serving that no op joins rows of tokens. A step has room for as many tokens of each group as
/// its bucket, and groups have fewer: the rows behind them hold no token, and would count. Rows meet in attention
/// alone, which reads how many there are, and in writes of pages, which leave out slot -1. The last token of a request
/// is taken by an index that comes at run time. Fails with an error at the first op for which this does not hold.
/// Functions of modules that do not serve have no such rows.
mlir::LogicalResult verifyTokenRows(mlir::func::FuncOp func, const PlacementAnalysis &layouts);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_TOKENROWS_H

//===- CountedRows.h - true rows keep their numbers -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_COUNTEDROWS_H
#define MESHWRIGHT_LIB_PLACEMENT_COUNTEDROWS_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"

namespace meshwright {

/// Proves that true rows (`dist.compact`, `dist.all_gather_v`) meet rows of the same numbers alone, go back to
/// the places from which they come (`dist.expand`, `dist.reduce_scatter_v`), and that no op joins rows: those
/// behind the true ones would count. The caller vouches for arguments, and layouts say which rows a rank has. Fails
/// with an error at the first op for which this does not hold.
mlir::LogicalResult verifyCountedRows(mlir::func::FuncOp func, const PlacementAnalysis &layouts);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_COUNTEDROWS_H

//===- Pages.h - pages are written before they are read ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PAGES_H
#define MESHWRIGHT_LIB_PLACEMENT_PAGES_H

#include "meshwright/lib/Placement/PlacementAnalysis.h"

namespace meshwright {

/// Proves that ops on pages (`PagesOpInterface`)
/// - read a cache as the function gives it to its state: the rows of the step are written before;
/// - have numbers of their own for the ranges of pages;
/// - merge all parts of one attention, each with its log-sum-exp: no op copies parts or leaves some out.
/// Fails with an error at the first op for which this does not hold. Layouts prove that tables and parts are those
/// of the rank.
mlir::LogicalResult verifyPages(mlir::func::FuncOp func, const PlacementAnalysis &layouts);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_PAGES_H

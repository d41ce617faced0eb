//===- ReadingSearch.h - one reading of each value --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Local dimensions of size 1 let a value be read in several ways (see `transfer`). Which
// one is meant its uses say, and they have to agree: on one reading of each value, with
// which every op is right.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_READINGSEARCH_H
#define MESHWRIGHT_LIB_PLACEMENT_READINGSEARCH_H

#include "meshwright/dialects/Dist/Layout.h"

#include "llvm/ADT/DenseMap.h"

namespace meshwright {

using Reading = const dist::Layout *;
using Readings = mlir::SmallVector<Reading, 2>;

/// Which readings of an op's operands give which readings of its results.
struct ReadingLink {
  mlir::Operation *op;
  mlir::SmallVector<mlir::Value, 4> operands;
  mlir::SmallVector<mlir::Value, 1> results;
  mlir::SmallVector<std::pair<mlir::SmallVector<Reading, 4>, mlir::SmallVector<Reading, 1>>>
      combinations;
};

/// Leaves each value of `ambiguous` one of its readings, such that those of each link's
/// values are one of its combinations; `get` gives the reading of other values. Returns
/// a link that has none, where there is no such choice.
std::optional<unsigned> chooseReadings(mlir::ArrayRef<ReadingLink> links,
                                       llvm::DenseMap<mlir::Value, Readings> &ambiguous,
                                       mlir::function_ref<Reading(mlir::Value)> get);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_READINGSEARCH_H

//===- Search.h - shortest paths over layouts -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `search` finds the cheapest collectives from one layout to another for the resharder, which cuts
// both into common factors before, and their axes into common parts.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_SEARCH_H
#define MESHWRIGHT_LIB_RESHARD_SEARCH_H

#include "meshwright/lib/Reshard/Reshard.h"

namespace meshwright {

/// Two layouts of one value that are cut alike.
struct ReshardProblem {
  llvm::SmallVector<ReshardFactor, 6> factors;
  /// Parts of the mesh's axes, in order. If the two layouts cut an axis in ways that do
  /// not fit, the parts of both cuts are listed. A layout uses the parts of one cut.
  llvm::SmallVector<dist::Axis, 8> axes;
  /// For each part the cuts that it belongs to: 1 is the source's, 2 the target's.
  llvm::SmallVector<uint8_t, 8> cuts;
  ReshardLayout source, target;
  dist::ReductionKind reduction = dist::ReductionKind::Sum;
  int64_t elementBytes = 1;
  /// The number of dimensions of rows. One launch moves these from the source to the target, and nothing else.
  int64_t rowDims = 0;
};

/// Returns the cheapest path among the layouts that the search keeps. Fails if there is none.
mlir::FailureOr<ReshardPlan> search(const ReshardProblem &problem, const CostModel &model,
                                    const ReshardOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_RESHARD_SEARCH_H

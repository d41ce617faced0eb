//===- Search.h - shortest paths over layouts -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The search behind the resharder, on layouts that are already cut into common
// factors and whose axes are cut into common parts.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_SEARCH_H
#define MESHWRIGHT_LIB_RESHARD_SEARCH_H

#include "meshwright/lib/Reshard/Reshard.h"

namespace meshwright {

struct ReshardProblem {
  llvm::SmallVector<ReshardFactor, 6> factors;
  /// Parts of the mesh's axes, in order. Where the two layouts cut an axis in ways
  /// that do not fit, the parts of both cuts: a layout uses those of one.
  llvm::SmallVector<dist::Axis, 8> axes;
  /// Of each part the cuts that it belongs to: the source's (1), the target's (2).
  llvm::SmallVector<uint8_t, 8> cuts;
  ReshardState source, target;
  dist::ReductionKind reduction = dist::ReductionKind::Sum;
  int64_t elementBytes = 1;
};

/// The cheapest path; fails where there is none.
mlir::FailureOr<ReshardPlan> search(const ReshardProblem &problem, const CostModel &model,
                                    const ReshardOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_RESHARD_SEARCH_H

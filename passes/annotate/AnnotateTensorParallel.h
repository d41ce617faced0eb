//===- AnnotateTensorParallel.h - shard weights, by structure ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_ANNOTATETENSORPARALLEL_H
#define MESHWRIGHT_PASSES_ANNOTATE_ANNOTATETENSORPARALLEL_H

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/Stages.h"

namespace meshwright {

/// The axes over which weights are sharded (major to minor), by the part of the program that the
/// sharded features have. Each list is a part of `all`. Weights stay whole where it is empty.
struct WeightAxes {
  /// The axes of tensor parallelism. Experts and tables that only look-ups read take all of them.
  dist::AxisList all;
  /// Features of ops that combine two values that depend on the inputs: heads.
  dist::AxisList attention;
  /// Other features between two weights.
  dist::AxisList dense;
  /// Features that no weight contracts: a vocabulary.
  dist::AxisList head;

  /// The same axes for all weights.
  static WeightAxes get(mlir::ArrayRef<dist::Axis> axes) {
    dist::AxisList all(axes);
    return {all, all, all, all};
  }
};

/// Returns true if the op combines elements of two values of float type for which `isComputed`
/// holds, as attention does. Rows of experts, which their weights join, do not count.
bool combinesValues(mlir::Operation *op, llvm::function_ref<bool(mlir::Value)> isComputed);

/// Shards the weights that the ops of `stages` use. Sets `rewritten` if it expands norms: `factors`
/// is then stale.
mlir::LogicalResult annotateTensorParallel(mlir::func::FuncOp func, const FactorAnalysis &factors,
                                           dist::MeshOp meshOp, WeightAxes axes,
                                           const StageFilter &stages, bool &rewritten);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_ANNOTATETENSORPARALLEL_H

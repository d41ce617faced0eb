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

/// Shards the weights that the ops of `stages` use over `axes` (major to minor). Sets
/// `rewritten` if it expands norms: `factors` is then stale.
mlir::LogicalResult annotateTensorParallel(mlir::func::FuncOp func, const FactorAnalysis &factors,
                                           dist::MeshOp meshOp, mlir::ArrayRef<dist::Axis> axes,
                                           const StageFilter &stages, bool &rewritten);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_ANNOTATETENSORPARALLEL_H

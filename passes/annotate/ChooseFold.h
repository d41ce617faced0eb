//===- ChooseFold.h - over which axes a stage is sharded --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CHOOSEFOLD_H
#define MESHWRIGHT_PASSES_ANNOTATE_CHOOSEFOLD_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/passes/annotate/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// A mode of fold-encoder and the axes that it shards over.
struct FoldCandidate {
  FoldMode mode;
  dist::AxisList axes;
  /// Why the mode cannot be had; empty if it can.
  std::string refusal;
};

/// Prices the stage in each of the modes, on a copy of it alone, and returns the mode
/// that takes the least time of those whose memory fits. Adds a decision with the table
/// of all candidates to the log.
///
/// `candidates` begins with mode none. `options` are those of the pass; their mode is
/// not used.
mlir::FailureOr<FoldMode> chooseFold(mlir::func::FuncOp func, dist::MeshOp meshOp,
                                     mlir::ArrayRef<FoldCandidate> candidates,
                                     const FoldEncoderPassOptions &options,
                                     const PriceFold &priceFold);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_CHOOSEFOLD_H

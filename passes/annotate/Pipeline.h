//===- Pipeline.h - the annotate phase -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H
#define MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H

#include "meshwright/passes/annotate/Passes.h"

#include "mlir/Pass/PassManager.h"

namespace meshwright {

struct AnnotateOptions {
  ParallelizeOptions request;
  /// Prices the candidates of `fold={stage: auto}`.
  PriceFold priceFold;
};

/// Adds the passes that declare the mesh and state the layouts that policies choose.
void buildAnnotatePipeline(mlir::OpPassManager &pm, const AnnotateOptions &options);

/// Adds fold-encoder and the passes of the annotate phase after it that concern a folded
/// stage, for a program that consists of this stage.
void buildFoldPipeline(mlir::OpPassManager &pm, const FoldEncoderPassOptions &fold);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H

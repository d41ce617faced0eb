//===- Pipeline.h - the annotate phase -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H
#define MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// Adds the passes that declare the mesh and state the layouts that policies choose.
void buildAnnotatePipeline(mlir::OpPassManager &pm, const ParallelizeOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_PIPELINE_H

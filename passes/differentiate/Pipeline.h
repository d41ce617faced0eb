//===- Pipeline.h - the differentiate phase ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_PIPELINE_H
#define MESHWRIGHT_PASSES_DIFFERENTIATE_PIPELINE_H

#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// Adds the passes that replace the gradients of a global program.
void buildDifferentiatePipeline(mlir::OpPassManager &pm);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_DIFFERENTIATE_PIPELINE_H

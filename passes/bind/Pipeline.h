//===- Pipeline.h - the bind phase ------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_BIND_PIPELINE_H
#define MESHWRIGHT_PASSES_BIND_PIPELINE_H

#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// Adds the pass that turns reads and writes of state into arguments and results.
void buildBindPipeline(mlir::OpPassManager &pm);

/// Adds the pass that gives parameters and states one sharding in all functions. Before the
/// policies two places that differ are an error of the user. Behind them the first place holds.
void buildTiePipeline(mlir::OpPassManager &pm, bool keepFirst);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_BIND_PIPELINE_H

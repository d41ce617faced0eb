//===- Pipeline.h - the partition phase ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_PIPELINE_H
#define MESHWRIGHT_PASSES_PARTITION_PIPELINE_H

#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// Adds the passes from a global program whose values have shardings to an SPMD
/// program.
void buildPartitionPipeline(mlir::OpPassManager &pm);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_PIPELINE_H

//===- Pipeline.h - the optimise phase -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_PIPELINE_H
#define MESHWRIGHT_PASSES_OPTIMISE_PIPELINE_H

#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// The options of the optimise phase.
struct OptimiseOptions {
  /// Says if all-reduces become reduce-scatters and all-gathers over tokens. This is for
  /// programs that enter with their all-reduces written out: policies scatter tokens
  /// themselves.
  OnOffAuto sequenceParallel = OnOffAuto::Auto;
  /// The types in which partial sums leave products and travel.
  ReduceTypes reduceTypes = {};
  /// The type in which gradients of weights travel to the ranks that store them.
  GtpReduce gtpReduce = GtpReduce::Plain;
};

/// Adds the passes that rewrite an SPMD program into one that communicates less.
void buildOptimisePipeline(mlir::OpPassManager &pm, const OptimiseOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_PIPELINE_H

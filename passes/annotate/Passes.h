//===- Passes.h - passes of the annotate phase ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_PASSES_H
#define MESHWRIGHT_PASSES_ANNOTATE_PASSES_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/Pass/Pass.h"

#include <functional>

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/annotate/Passes.h.inc"

/// The cost of a stage to a rank in one mode of fold-encoder.
struct FoldPrice {
  ProgramCost cost;
  Memory memory;
  /// True if the stage's schedule keeps to the memory ceiling.
  bool fits = true;
  /// Why the mode cannot be planned; empty if it can.
  std::string refusal;
};

/// Prices `stage`, an annotated program of its own, folded as `fold` says. The other
/// phases know the price, so passes/Pipeline.cpp supplies the function.
using PriceFold =
    std::function<FoldPrice(mlir::ModuleOp stage, const FoldEncoderPassOptions &fold)>;

/// Mode auto fails without a function that prices.
std::unique_ptr<mlir::Pass> createFoldEncoderPass(FoldEncoderPassOptions options,
                                                  PriceFold priceFold);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_PASSES_H

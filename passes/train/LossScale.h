//===- LossScale.h - a factor of the loss before differentiation *- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Gradients of f16 that are too small to have a number are scaled up, and the update takes the scale
// away.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_LOSSSCALE_H
#define MESHWRIGHT_PASSES_TRAIN_LOSSSCALE_H

#include "meshwright/passes/train/Passes.h"
#include "meshwright/passes/train/States.h"
#include "meshwright/passes/train/TrainedParameters.h"

namespace meshwright {

/// Scales the loss as PyTorch's GradScaler does. The scale is a state, so that it may grow and
/// shrink.
class LossScale {
public:
  LossScale(const BuildStepsPassOptions &options, States &states)
      : options(options), states(states) {}

  /// Takes the gradients of the loss times the scale.
  void scale(mlir::func::FuncOp func, mlir::Value loss);
  /// Divides the gradients by the scale. The update is skipped if one of them is not finite.
  void unscale(nn::Writer &w, llvm::MutableArrayRef<Trained> trained);

private:
  const BuildStepsPassOptions &options;
  States &states;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_LOSSSCALE_H

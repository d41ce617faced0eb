//===- Optimizer.h - the update rules of optimizers -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H
#define MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H

#include "meshwright/passes/train/Passes.h"
#include "meshwright/passes/train/States.h"

namespace meshwright {

/// The update rule of an optimizer. Its state is named `optimizer.WHAT.NAME`, as PyTorch names it.
class Optimizer {
public:
  virtual ~Optimizer() = default;

  /// Makes the optimizer that the options name. Returns null, after an error, for another name
  /// and for numbers that it does not take.
  static std::unique_ptr<Optimizer>
  create(const BuildStepsPassOptions &options,
         llvm::function_ref<mlir::InFlightDiagnostic()> emitError);

  /// Writes what all parameters share. `rate` is a scalar of type f32.
  virtual void begin(nn::Writer &w, States &states, mlir::Value rate) = 0;
  /// Writes the new value of a parameter from its value and its gradient, which have one type.
  virtual mlir::Value update(nn::Writer &w, States &states, llvm::StringRef name,
                             mlir::Value value, mlir::Value gradient) = 0;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H

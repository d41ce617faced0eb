//===- TrainedParameters.h - parameters that a step updates -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step updates the parameters whose gradients its function returns, if the loss depends on them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_TRAINEDPARAMETERS_H
#define MESHWRIGHT_PASSES_TRAIN_TRAINEDPARAMETERS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// A parameter that a step updates.
struct Trained {
  llvm::StringRef name;
  mlir::BlockArgument argument;
  mlir::Value gradient;
};

/// The loss of a step, and the parameters on which it depends, in the order of the results that
/// were their gradients.
struct TrainedParameters {
  mlir::Value loss;
  llvm::SmallVector<Trained> parameters;
};

/// Takes the gradients off the results of a function. Fails, after an error, if there are none, if
/// one is that of a part of a stored tensor, and if the loss depends on no parameter.
mlir::FailureOr<TrainedParameters> takeGradients(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_TRAINEDPARAMETERS_H

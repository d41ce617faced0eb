//===- Models.h - how ops differentiate -------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_MODELS_H
#define MESHWRIGHT_PASSES_DIFFERENTIATE_MODELS_H

#include "mlir/IR/DialectRegistry.h"

namespace meshwright {

/// Gives all ops of the nn dialect, and dist.constrain, their models of
/// DifferentiableOpInterface when the dialect is loaded.
void registerDifferentiation(mlir::DialectRegistry &registry);

// The models of each family, in the file of that name.
void attachElementwiseModels(mlir::MLIRContext *context);
void attachMovementModels(mlir::MLIRContext *context);
void attachIndexingModels(mlir::MLIRContext *context);
void attachReductionModels(mlir::MLIRContext *context);
void attachProductModels(mlir::MLIRContext *context);
void attachAttentionModels(mlir::MLIRContext *context);
void attachExpertModels(mlir::MLIRContext *context);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_DIFFERENTIATE_MODELS_H

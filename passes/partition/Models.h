//===- Models.h - how ops become local --------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LocalOpInterface, and its external models. A model states how one op becomes local whose factor
// rule does not say all of it, in terms of the services of the Partitioner.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_MODELS_H
#define MESHWRIGHT_PASSES_PARTITION_MODELS_H

#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectRegistry.h"

namespace meshwright {

class Partitioner;

/// The axes over which an op computes, for each class of each factor of its rule.
using Assignment = mlir::SmallVector<mlir::SmallVector<dist::AxisList, 2>, 8>;

} // namespace meshwright

#include "meshwright/passes/partition/PartitionInterfaces.h.inc"

namespace meshwright {

/// Gives ops of the nn dialect their models of LocalOpInterface when the dialect is loaded.
void registerPartitionModels(mlir::DialectRegistry &registry);

namespace local_models {

// The models of each family, in the file of that name.
void attachBlockModels(mlir::MLIRContext *context);
void attachCountedRowModels(mlir::MLIRContext *context);
void attachMovementModels(mlir::MLIRContext *context);
void attachPartsModels(mlir::MLIRContext *context);
void attachRingAttentionModels(mlir::MLIRContext *context);
void attachSelectionModels(mlir::MLIRContext *context);
void attachStorageModels(mlir::MLIRContext *context);
void attachTableModels(mlir::MLIRContext *context);

} // namespace local_models
} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_MODELS_H

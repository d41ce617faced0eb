//===- Models.h - how layouts pass ops --------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LayoutOpInterface, and its external models. A model states how layouts pass one op whose factor
// rule does not say all of it. Most of them derive a class from RuleTransfer.
//
// This header is private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_MODELS_H
#define MESHWRIGHT_LIB_PLACEMENT_MODELS_H

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

#include "meshwright/lib/Placement/PlacementInterfaces.h.inc"

namespace meshwright::layout_transfer {

/// The model of an op whose layouts pass by a class derived from RuleTransfer.
template <typename OpT, typename TransferT>
struct RuleModel : LayoutOpInterface::ExternalModel<RuleModel<OpT, TransferT>, OpT> {
  MaybeLayouts transfer(mlir::Operation *, const TransferContext &context,
                        mlir::SmallVectorImpl<dist::Layout> *) const {
    return TransferT(context).run();
  }
};

// The models of each family, in the file of that name.
void attachMovementModels(mlir::MLIRContext *context);
void attachTableModels(mlir::MLIRContext *context);
void attachAttentionModels(mlir::MLIRContext *context);
void attachRowModels(mlir::MLIRContext *context);
void attachPagesModels(mlir::MLIRContext *context);

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_MODELS_H

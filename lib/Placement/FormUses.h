//===- FormUses.h - which form of a weight an op needs ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_FORMUSES_H
#define MESHWRIGHT_LIB_PLACEMENT_FORMUSES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Returns true for an op that gives a rounded weight to its readers in another shape or type.
bool isFormLink(mlir::Operation *op);

/// The dimension of a rounded weight that the op which reads it contracts, or -1 if it contracts none.
/// `links` lead from the weight to the use, in their order.
int64_t getContractedDim(mlir::OpOperand &use, llvm::ArrayRef<mlir::Operation *> links);

/// Checks the forms in which weights travel (`#dist.form`), before or after launches are formed:
/// - an op that contracts a dimension reads the blocks along this dimension;
/// - the largest magnitude by which a weight is encoded is its own.
mlir::LogicalResult verifyForms(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_FORMUSES_H

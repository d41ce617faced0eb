//===- JoinDimensions.h - one launch for two dimensions ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_JOINDIMENSIONS_H
#define MESHWRIGHT_PASSES_OPTIMISE_JOINDIMENSIONS_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Two all-gathers of a value, one behind the other, become one where a rank has one row of the
/// outer dimension: the chunks of both then follow each other, and nothing is copied. So do two
/// reduce-scatters. Logs each under `pass`; returns true if there was any.
bool joinDimensions(mlir::func::FuncOp func, const CostModel &model, llvm::StringRef pass);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_JOINDIMENSIONS_H

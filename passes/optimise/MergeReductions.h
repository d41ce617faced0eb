//===- MergeReductions.h - one reduction for several addends ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_OPTIMISE_MERGEREDUCTIONS_H
#define MESHWRIGHT_PASSES_OPTIMISE_MERGEREDUCTIONS_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Where an addition, however nested, joins several values that are reduced over
/// the same axes and used for nothing else, adds the partial values and reduces
/// once. Logs each under `pass`; tells whether there was any.
bool mergeReductions(mlir::func::FuncOp func, const CostModel &model, llvm::StringRef pass);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_OPTIMISE_MERGEREDUCTIONS_H

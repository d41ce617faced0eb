//===- PackWeights.h - when weights are packed ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `--form-kernels` asks here which products `--pack-weights` will let read their weights packed: only
// their kernels can compute other ops, too.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PACKWEIGHTS_H
#define MESHWRIGHT_PASSES_SCHEDULE_PACKWEIGHTS_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Weights/Weights.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Returns true if a weight of the function can be brought to its packed form before a call: all
/// its links are views and casts, and the function gives it no other value.
bool isPreparedBefore(mlir::func::FuncOp func, const Weight &weight);

/// Returns true if the product has rows enough that to pack its weight in the call takes less time
/// than the product.
bool isWorthPackingAtUse(mlir::Operation *product, mlir::Value weight);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PACKWEIGHTS_H

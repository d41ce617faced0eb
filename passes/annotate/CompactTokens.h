//===- CompactTokens.h - layers of all ranks on true tokens -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_COMPACTTOKENS_H
#define MESHWRIGHT_PASSES_ANNOTATE_COMPACTTOKENS_H

#include "meshwright/lib/Factors/FactorAnalysis.h"

namespace meshwright {

/// In a step of serving that states the most tokens of all groups (`nn.token_sum`), lets the ops that see the
/// tokens of all groups compute the true ones alone: `dist.compact` stands before them and `dist.expand`
/// behind. These are the ops that have a factor of a class for which `isShared` holds, and all ops on rows
/// of experts if one of them has. `replicas` is the number of ranks of data parallelism, which have groups of their own.
/// Sets `rewritten` if it changed the function; leaves others alone.
mlir::LogicalResult compactTokens(mlir::func::FuncOp func, const FactorAnalysis &factors,
                                  llvm::function_ref<bool(int)> isShared, int64_t replicas,
                                  bool &rewritten);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_COMPACTTOKENS_H

//===- AttentionBias.h - biases that attention computes ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A mask is often computed element by element from values that have an element for
// each query or for each key (their segments, their positions, padding). Attention
// then reads these, and computes what it adds to a block of scores where it needs it.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ATTENTIONBIAS_H
#define MESHWRIGHT_LIB_CODEGEN_ATTENTIONBIAS_H

#include "meshwright/lib/Codegen/RowPlan.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <array>
#include <optional>
#include <string>

namespace meshwright::lower {

/// Of the bias, strides of batch, head, query and key; 0 broadcasts.
std::array<int64_t, 4> getBiasStrides(nn::AttentionOp op);

/// The ops that compute the op's bias from inputs of which none varies with both the
/// query and the key. None where there are no such ops; `reason` says why where there
/// are ops, but also a value that has to be in memory.
std::optional<KernelRegion> getBiasRegion(nn::AttentionOp op, std::string &reason);

/// How the bias is read: loops over batch, head and keys around columns that are queries,
/// or over batch, head and queries around columns that are keys.
struct BiasPoints {
  BiasPoints(nn::AttentionOp op, bool queriesAreColumns);

  LoopSpace space;
  Access access;
  /// The elements of the region's inputs, and the indices, that vary with the column.
  llvm::SmallVector<std::pair<mlir::Value, Access>> columnTerms;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ATTENTIONBIAS_H

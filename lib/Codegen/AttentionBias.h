//===- AttentionBias.h - biases that attention computes ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A mask is often computed element by element from values with one element for each
// query or for each key: segments, positions, padding. The kernel of attention then
// reads these values and computes the bias of a block of scores itself, so that the
// whole bias is never in memory.
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

/// The strides of the bias over batch, head, query and key. A stride of 0 broadcasts.
std::array<int64_t, 4> getBiasStrides(nn::ScoresOpInterface op);

/// The ops that compute the bias of `op` from inputs that vary with the query or with the
/// key, but not with both. Returns none if there are no such ops. If there are, but they
/// read a value that has to be in memory, `reason` names it.
std::optional<KernelRegion> getBiasRegion(nn::ScoresOpInterface op, std::string &reason);

/// The points of a bias, in one of two orders: loops over batch, head and keys, whose
/// columns are queries, or loops over batch, head and queries, whose columns are keys.
struct BiasPoints {
  BiasPoints(nn::ScoresOpInterface op, bool queriesAreColumns);

  LoopSpace space;
  Access access;
  /// The inputs of the region, and the indices, whose elements vary with the column.
  llvm::SmallVector<std::pair<mlir::Value, Access>> columnTerms;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ATTENTIONBIAS_H

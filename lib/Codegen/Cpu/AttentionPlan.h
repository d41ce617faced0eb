//===- AttentionPlan.h - how attention is cut into work --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H

#include "meshwright/lib/Codegen/Processor.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <optional>

namespace meshwright::lower {

/// How attention is cut into items of work, for a target: shapes, the blocks of
/// queries and keys, and what lies where in the workspace.
///
/// Query heads that share a key head lie one behind the other, so the rows of
/// all of them are one matrix. An item is a block of rows of one unit: a query
/// head, or, where its rows do not fill a block, all heads of a key head.
struct AttentionPlan {
  AttentionPlan(nn::AttentionOp op, const Processor &processor);

  /// `keys` are those that any query may see (up to kv_length); `keyRows` is
  /// how many lie in memory.
  int64_t batch, queryHeads, keyHeads, queries, keys, keyRows, features, valueFeatures;
  /// A query at i sees keys from i - left to i + right.
  std::optional<int64_t> left, right;
  /// Whether places of queries and keys are operands; keys of negative place are
  /// padding then.
  bool hasPositions;
  /// Elements as stored, and what arithmetic is done in: f32, or f64 for f64.
  mlir::Type element, compute;
  /// Elements of `compute` in a vector register.
  int64_t lanes;
  /// Products of pairs of bf16.
  bool usesDot;

  /// Heads whose rows are one unit, units of the whole op, rows of a unit.
  int64_t headsPerUnit, units, rows;
  /// Whether rows are taken one after another, lanes along features (few
  /// queries), instead of as the lanes of a vector.
  bool byRow;
  /// Rows of an item, and keys that are taken at once.
  int64_t blockRows, blockKeys;
  /// Items a unit has.
  int64_t blocks;

  /// What is computed and read at least.
  int64_t flops, bytes;

  int64_t getItems() const { return units * blocks; }
  /// Whether some query of the op might not see some key.
  bool isPositional() const { return left || right || hasPositions; }
  /// Whether the rows of a unit are queries in order, at 0, 1, ..., and so are keys:
  /// what a row sees is known from where it is.
  bool isOrdered() const { return !hasPositions && headsPerUnit == 1; }
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H

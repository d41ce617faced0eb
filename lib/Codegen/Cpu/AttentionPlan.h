//===- AttentionPlan.h - how attention is cut into work --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H

#include "meshwright/lib/Codegen/AttentionShape.h"
#include "meshwright/lib/Codegen/Processor.h"

namespace meshwright::lower {

/// How attention is cut into items of work, for a processor: shapes, and the blocks of queries
/// and keys.
///
/// Query heads that share a key head are stored consecutively, so their rows are one matrix. An
/// item is a block of rows of one unit. A unit is a query head, or, if the rows of a head do not
/// fill a block, all query heads of a key head. In a backward pass the emitter decides which units
/// are an item.
struct AttentionPlan : AttentionShape {
  AttentionPlan(nn::ScoresOpInterface op, const Processor &processor);

  /// Elements of `compute` in a vector register.
  int64_t lanes;
  /// Instructions multiply pairs of bf16.
  bool usesDot;

  /// Heads whose rows are one unit, units of the whole op, rows of a unit.
  int64_t headsPerUnit, units, rows;
  /// Rows are computed one by one, with features as lanes (for few queries). Otherwise rows are
  /// lanes.
  bool byRow;
  /// Rows of an item, and keys of a block.
  int64_t blockRows, blockKeys;
  /// Items of a unit.
  int64_t blocks;

  int64_t getItems() const { return units * blocks; }
  /// Returns true if the rows of a unit are queries at positions 0, 1, ..., and keys are at such
  /// positions, too. The index of a row then decides the keys that it sees.
  bool isOrdered() const { return !hasPositions && headsPerUnit == 1; }
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPLAN_H

//===- RowPlan.h - how a kernel goes over rows ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A row kernel computes elementwise ops, movement and reductions of whole rows
// (norms, softmax, sums) that agree on what a row is. It goes row by row, several
// times over the columns of each: a pass computes the statistics (sums, maxima)
// whose operands are known, the next one what depends on them, so that inputs
// come from memory once. What a pass computes at some cost and a later one needs
// again is kept for the row: in the output that it is, or in a workspace.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H
#define MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H

#include "meshwright/lib/Codegen/Access.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

#include "llvm/ADT/DenseSet.h"

#include <map>
#include <string>
#include <vector>

namespace meshwright {
class KernelTarget;
} // namespace meshwright

namespace meshwright::lower {

/// What a kernel computes: ops in order, whose operands are results of others of
/// them or `inputs`, and the values that it writes.
struct KernelRegion {
  llvm::SmallVector<mlir::Operation *> ops;
  llvm::SmallVector<mlir::Value> inputs, outputs;

  /// The op that gives a value here, null for inputs.
  mlir::Operation *getDefiningOp(mlir::Value value) const {
    mlir::Operation *op = value.getDefiningOp();
    return op && members.contains(op) ? op : nullptr;
  }
  void add(mlir::Operation *op) {
    ops.push_back(op);
    members.insert(op);
  }
  /// That of a launch.
  static KernelRegion of(rt::KernelOp launch);
  /// Ops in any order, of which others read these values.
  static KernelRegion of(llvm::ArrayRef<mlir::Operation *> ops,
                         llvm::ArrayRef<mlir::Value> outputs);

private:
  llvm::DenseSet<mlir::Operation *> members;
};

/// What is reduced over the columns of a row. Norms and softmax have two or
/// fewer, in stages.
struct Statistic {
  enum Kind { Sum, SquareSum, CentredSquareSum, Max, Min, ExponentialSum } kind;
  mlir::Operation *op;
  unsigned stage;
  /// The first element of the row in the op's operand.
  Access row;
  int64_t columns;
  /// Passes that come before the one that computes it.
  int64_t level;
};

/// An output, or a part of it.
struct Store {
  unsigned output;
  /// Null for zeros.
  mlir::Value value;
  /// What is stored at a point, and where.
  Access from, to;
  /// Once for each row.
  bool perRow;
  int64_t level;
};

/// A value that a pass computes at some cost and later ones read again.
struct Kept {
  mlir::Value value;
  Access access;
  int64_t columns, level;
};

/// Points that are done together.
struct RowPiece {
  /// The rows, and the columns of what is stored for each point.
  LoopSpace space;
  llvm::SmallVector<Statistic> statistics;
  llvm::SmallVector<Store> stores;
  llvm::SmallVector<Kept> kept;
  /// Where columns must be cut because what is computed changes, for each number
  /// of columns.
  std::map<int64_t, llvm::SmallVector<int64_t>> cuts;
  /// Every linear function that is evaluated: loops are joined where they agree.
  llvm::SmallVector<Access> accesses;
  int64_t numPasses = 1;

  /// The loops over rows: for each, the dimensions of `space` that it joins; dimensions
  /// of size 1 are in none. Dimensions that the columns go on with are in
  /// `columnDims`.
  llvm::SmallVector<llvm::SmallVector<unsigned, 2>> loops;
  llvm::SmallVector<unsigned, 2> columnDims;

  int64_t getLoopSize(size_t loop) const;
  int64_t getNumRows() const;
  /// Columns of what is stored, with those that `columnDims` adds.
  int64_t getNumColumns() const;
};

struct RowPlan {
  std::vector<RowPiece> pieces;
  /// What limits the width of vectors: bytes of the widest element, whether some
  /// op costs many instructions, and whether something is computed or loaded
  /// element by element.
  int64_t widestBytes = 4;
  bool isCostly = false, isScalar = false;
  /// Whether vectors in memory are of bf16 and those between of it and f32, so that
  /// in what order the latter have a chunk's columns does not show.
  bool canReorder = true;
};

/// The plan of a region, or why there is none.
struct RowPlanResult {
  std::optional<RowPlan> plan;
  std::string reason;
};
RowPlanResult planRows(const KernelRegion &region, const KernelTarget &target);

/// Ops whose results row kernels compute element by element from statistics of
/// rows.
bool isRowReduction(mlir::Operation *op);
/// Ops that row kernels may contain.
bool isRowOp(mlir::Operation *op);
/// Of a row reduction: the columns of its rows.
int64_t getRowColumns(mlir::Operation *op);

/// The statistic of an op at a stage, for a row.
const Statistic *findStatistic(const RowPiece &piece, mlir::Operation *op, unsigned stage,
                               const Access &row);
/// The row of the operand of a row reduction that an element of its result
/// depends on, none if it changes with the column.
std::optional<Access> getStatisticRow(mlir::Operation *op, const Access &access,
                                      const LoopSpace &space);

/// The parts of a rotary op's features: the first and the second element of each
/// pair (one part where they are interleaved), and those that are not rotated.
struct RotaryPart {
  enum Kind { First, Second, Pairs, Rest } kind;
  int64_t begin, end;
};
llvm::SmallVector<RotaryPart> getRotaryParts(nn::RotaryOp op);
/// How far the other element of a pair is.
int64_t getRotaryShift(nn::RotaryOp op, RotaryPart::Kind kind);

/// Columns, begin .. end, for which a concatenation or a rotary op is one thing: an
/// operand of the former, from its index `from` on, or a part of the latter. `first`
/// is the index in the dimension at the first of these columns.
struct ColumnPart {
  mlir::Value operand;
  RotaryPart::Kind kind;
  int64_t begin, end, from, first;
};
/// Returns true for ops that are computed in parts of the columns.
bool hasColumnParts(mlir::Operation *op);
/// The parts of an op in a space; none if it does not lie along the columns.
std::optional<llvm::SmallVector<ColumnPart>>
getColumnParts(mlir::Operation *op, const Access &access, const LoopSpace &space);
/// Where a part reads an operand: `from` before and `shift` behind the
/// element in the dimension that is cut.
std::optional<Access> getPartAccess(mlir::Operation *op, mlir::Value operand, int64_t from,
                                    int64_t shift, const Access &access, const LoopSpace &space);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H

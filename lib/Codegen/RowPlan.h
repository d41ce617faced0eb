//===- RowPlan.h - loops and passes of a row kernel -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A row kernel computes elementwise ops, movement and reductions of whole rows
// (norms, softmax, sums) of the same length.
//
// - The kernel visits the rows one by one, and makes several passes over the columns
//   of each. A row fits in a cache, so inputs come from memory once.
// - A pass computes the statistics (sums, maxima) whose operands are known. The next
//   pass computes the values that depend on them.
// - A value that one pass computes at some cost and a later pass reads again is kept
//   for the row, in the output or in a workspace.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H
#define MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H

#include "meshwright/lib/Codegen/Access.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseSet.h"

#include <map>
#include <string>
#include <vector>

namespace meshwright {
class KernelTarget;
} // namespace meshwright

namespace meshwright::lower {

/// The ops of a kernel, in program order. Their operands are results of other ops of the
/// region, or `inputs`. The kernel writes `outputs`.
struct KernelRegion {
  llvm::SmallVector<mlir::Operation *> ops;
  llvm::SmallVector<mlir::Value> inputs, outputs;

  /// The op of the region that defines a value, null for inputs.
  mlir::Operation *getDefiningOp(mlir::Value value) const {
    mlir::Operation *op = value.getDefiningOp();
    return op && members.contains(op) ? op : nullptr;
  }
  void add(mlir::Operation *op) {
    ops.push_back(op);
    members.insert(op);
  }
  /// The positions that the region makes. The kernel reads one number of the rank for each: the
  /// index of the rank's first element in the padded dimension.
  llvm::SmallVector<mlir::Value> getPositions() const;
  /// The region of a launch.
  static KernelRegion of(rt::KernelOp launch);
  /// The region of ops given in any order. Other ops read `outputs`.
  static KernelRegion of(llvm::ArrayRef<mlir::Operation *> ops,
                         llvm::ArrayRef<mlir::Value> outputs);

private:
  ProgramSet<mlir::Operation *> members;
};

/// A reduction over the columns of a row. Norms and softmax have at most two, in stages.
struct Statistic {
  enum Kind { Sum, SquareSum, CentredSquareSum, Max, Min, ExponentialSum } kind;
  mlir::Operation *op;
  unsigned stage;
  /// The first element of the row in the op's operand.
  Access row;
  int64_t columns;
  /// The number of passes before the pass that computes it.
  int64_t level;
};

/// The positions of a padded dimension, made in the region, that the op compares with zero: true
/// elements come before padding, so their indices alone tell them apart. Null for other ops.
dist::PositionsOp getTestedPositions(const KernelRegion &region, mlir::Operation *op);

/// The number that a rank's kernels make positions of: the index of its first element, for the
/// coordinate of the rank over the axes of the dimension.
int64_t getFirstIndex(dist::PositionsOp op, int64_t coordinate);

/// A store to an output, or to a section of it.
struct Store {
  unsigned output;
  /// Null for zeros.
  mlir::Value value;
  /// The element of the value that a point stores, and its index in the output.
  Access from, to;
  /// True if there is one element for each row, rather than for each column.
  bool perRow;
  int64_t level;
};

/// A value that a pass computes at some cost and later passes read again.
struct Kept {
  mlir::Value value;
  Access access;
  int64_t columns, level;
};

/// Points that one nest of loops visits.
struct RowPiece {
  /// The rows, and the columns of the stores.
  LoopSpace space;
  llvm::SmallVector<Statistic> statistics;
  llvm::SmallVector<Store> stores;
  llvm::SmallVector<Kept> kept;
  /// By the number of columns of a pass: the columns at which its computation changes, so
  /// that the loop over columns is cut there.
  std::map<int64_t, llvm::SmallVector<int64_t>> cuts;
  /// All accesses of the piece. Loops are joined if every access continues from one to the
  /// next.
  llvm::SmallVector<Access> accesses;
  int64_t numPasses = 1;

  /// For each loop over rows, the dimensions of `space` that it joins. Dimensions of size 1
  /// are in no loop. `columnDims` has the dimensions that the loop over columns joins.
  llvm::SmallVector<llvm::SmallVector<unsigned, 2>> loops;
  llvm::SmallVector<unsigned, 2> columnDims;

  int64_t getLoopSize(size_t loop) const;
  int64_t getNumRows() const;
  /// The columns of the stores times the sizes of `columnDims`.
  int64_t getNumColumns() const;
};

struct RowPlan {
  std::vector<RowPiece> pieces;
  /// Limits of the width of vectors: the bytes of the widest element, whether an op takes
  /// many instructions, and whether an op or a load goes element by element.
  int64_t widestBytes = 4;
  bool isCostly = false, isScalar = false;
  /// True if all vectors in memory are of bf16, and all others of bf16 or f32. Then the
  /// order of the columns within vectors of f32 has no effect on memory.
  bool canReorder = true;
};

/// The plan of a region, or the reason why there is none.
struct RowPlanResult {
  std::optional<RowPlan> plan;
  std::string reason;
};
RowPlanResult planRows(const KernelRegion &region, const KernelTarget &target);

/// Returns true for ops whose elements a row kernel computes from statistics of rows.
bool isRowReduction(mlir::Operation *op);
/// Returns true for ops that row kernels may contain.
bool isRowOp(mlir::Operation *op);
/// The number of columns of the rows of a row reduction.
int64_t getRowColumns(mlir::Operation *op);

/// The statistic of an op at a stage, for a row; null if the piece has none.
const Statistic *findStatistic(const RowPiece &piece, mlir::Operation *op, unsigned stage,
                               const Access &row);
/// The first element of the row of the operand of a row reduction that an element of its
/// result depends on. Returns none if the row changes with the column.
std::optional<Access> getStatisticRow(mlir::Operation *op, const Access &access,
                                      const LoopSpace &space);

/// A section of the features of a rotary op: the first elements or the second elements of pairs
/// (one section if they are interleaved), or the features that are not rotated.
struct RotarySection {
  enum Kind { First, Second, Pairs, Rest } kind;
  int64_t begin, end;
};
llvm::SmallVector<RotarySection> getRotarySections(nn::RotaryOp op);
/// The distance from an element of a pair to the other one.
int64_t getRotaryShift(nn::RotaryOp op, RotarySection::Kind kind);

/// Columns, begin .. end, over which the result is one operand of a concatenation, from
/// index `from` of that operand on, or one section of a rotary op. `first` is the index in
/// the dimension at the first of these columns.
struct ColumnSection {
  mlir::Value operand;
  RotarySection::Kind kind;
  int64_t begin, end, from, first;
};
/// Returns true for ops that are computed in sections of the columns.
bool hasColumnSections(mlir::Operation *op);
/// The sections of an op in a space. Returns none if its dimension is not along the columns.
std::optional<llvm::SmallVector<ColumnSection>>
getColumnSections(mlir::Operation *op, const Access &access, const LoopSpace &space);
/// The access of an operand of a section. In the dimension that is cut, it is `from` before
/// and `shift` behind the element of the result.
std::optional<Access> getSectionAccess(mlir::Operation *op, mlir::Value operand, int64_t from,
                                       int64_t shift, const Access &access, const LoopSpace &space);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ROWPLAN_H

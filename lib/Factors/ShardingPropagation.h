//===- ShardingPropagation.h - shardings to a fixed point -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H
#define MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

#include "meshwright/lib/Factors/FactorAnalysis.h"

#include "llvm/ADT/SmallBitVector.h"

#include <deque>

namespace meshwright {

/// Propagates the shardings of annotated values (`dist.sharding`) to all other values,
/// forward and backward along the factors of ops, to a fixed point.
/// - There are three rounds. The first propagates from parameters and states, the second also
///   from inputs, the third also from annotated interior values. A later round never changes the
///   axes that an earlier one gave a factor.
/// - Within a round, program order decides.
/// - An annotated value keeps its sharding, except for open dimensions (`?`).
/// - An axis shards at most one factor of a value.
/// - The third round does not shard tokens of routed rows, unless other rows have them so: rows of some
///   tokens cannot be taken out of others.
/// - All rows that ops connect have the same tokens. So their tokens take the first axes up to one that
///   shards experts or features of any of these rows; tokens are then gathered before they are routed.
/// - A parameter or a state has one sharding in all functions. That of a state propagates to
///   and from the values that the functions give it.
///
/// Each visit of an op only adds axes, so the rounds end. The number of visits is linear in
/// the program for a bounded number of axes.
class ShardingPropagation {
public:
  /// Two annotations that disagree about a factor.
  struct Conflict {
    mlir::Operation *op;
    mlir::Value first, second;
    mlir::Location firstOrigin, secondOrigin;
    dist::AxisList firstAxes, secondAxes;
  };

  static mlir::FailureOr<ShardingPropagation>
  run(mlir::ArrayRef<mlir::func::FuncOp> functions, const FactorAnalysis &factors,
      dist::MeshAttr mesh);

  ValueSharding get(mlir::Value value) const { return getSharding(getIndex(value)); }
  /// The sharding of one of the analysis's shared values, by its index.
  ValueSharding getShared(size_t index) const { return getSharding(index); }
  mlir::ArrayRef<Conflict> getConflicts() const { return conflicts; }

private:
  // Large programs have many entries and occurrences, and each round reads all of them. So they are small, and in
  // program order.

  /// The sharding of a value, and where it comes from.
  struct ValueEntry {
    /// The classes of each dimension. Their axes are in `axes`, from `firstClass` on.
    mlir::ArrayRef<FactorClasses> classes;
    unsigned firstClass;
    /// The index in `lists` of the axes over which the annotation declares the value unreduced. They shard no
    /// dimension.
    unsigned unreduced = 0;
    /// The index in `routings` of the rows that ops connect with these rows.
    unsigned routing = 0;
    /// The dimensions of tokens of routed rows, behind that of the experts.
    short tokens = 0;
    /// The first round that propagates the value's axes.
    signed char round = 0;
    /// True if the value carries an annotation.
    bool annotated = false;
    /// Which dimensions of an annotated value are open.
    llvm::SmallBitVector open;
    /// The annotation that its axes come from; null without one.
    mlir::LocationAttr origin;
  };
  /// One class of one dimension of an operand or result of an op.
  struct Occurrence {
    /// The index of the value's entry.
    unsigned entry;
    /// The index in `axes`.
    unsigned cls;
    /// For a state that is written, its first value.
    mlir::Value value;
    short dim;
    /// True if the value is a result of the op, or the state that a return writes.
    bool isResult;
  };
  /// The occurrences of an op that share a class; two at least.
  using Group = llvm::ArrayRef<Occurrence>;
  /// The groups of an op, from the first to before the last.
  struct OpGroups {
    unsigned first = 0, last = 0;
  };

  unsigned getIndex(mlir::Value value) const { return entryIndices.find(value)->second; }
  llvm::ArrayRef<unsigned> getLists(unsigned entry) const;
  const dist::AxisList &getAxes(const Occurrence &occurrence) const { return lists[axes[occurrence.cls]]; }
  unsigned getNumber(mlir::ArrayRef<dist::Axis> list);
  ValueSharding getSharding(unsigned entry) const;
  Group getGroup(unsigned index) const;

  dist::AxisList getContractedAxes(mlir::Operation *op, const FactorAnalysis &factors) const;
  mlir::LogicalResult addValue(mlir::Value value, dist::ShardingAttr attr, int round,
                               const FactorAnalysis &factors, dist::MeshAttr mesh);
  mlir::LogicalResult addShared(const FactorAnalysis &factors, dist::MeshAttr mesh);
  void addWrites();
  void addGroups(mlir::Operation *op, const FactorAnalysis &factors);
  void connectRows(mlir::ArrayRef<mlir::func::FuncOp> functions);
  dist::AxisList getFreeAxes(const Occurrence &occurrence, mlir::ArrayRef<dist::Axis> axes) const;
  void visitNeighbours(const Occurrence &occurrence,
                       llvm::function_ref<void(mlir::Operation *)> visit) const;
  void propagate(mlir::ArrayRef<mlir::func::FuncOp> functions, const FactorAnalysis &factors);
  void reportConflicts(mlir::Operation *op, OpGroups opGroups);
  void visit(mlir::Operation *op, OpGroups opGroups, const FactorAnalysis &factors, int round,
             llvm::function_ref<void(const Occurrence &)> changed);

  /// The entries of the shared values, in their order, and behind them those of other values.
  std::vector<ValueEntry> entries;
  ProgramMap<mlir::Value, unsigned> entryIndices;
  mlir::ArrayRef<SharedValue> shared;
  /// For each class of each dimension of each entry, the index in `lists` of its axes.
  std::vector<unsigned> axes;
  /// Each distinct list of axes once; the first is empty. Programs have few.
  std::deque<dist::AxisList> lists = {dist::AxisList()};
  /// The groups of all ops: where the occurrences of each end.
  std::vector<Occurrence> occurrences;
  std::vector<unsigned> groupEnds;
  ProgramMap<mlir::Operation *, OpGroups> groups;
  /// Routed rows, by the ops that connect them.
  std::vector<llvm::SmallVector<unsigned, 8>> routings;
  std::vector<Conflict> conflicts;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

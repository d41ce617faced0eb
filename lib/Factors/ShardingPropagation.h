//===- ShardingPropagation.h - shardings to a fixed point -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H
#define MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

#include "meshwright/lib/Factors/FactorAnalysis.h"

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

  const ValueSharding &get(mlir::Value value) const { return getEntry(value).sharding; }
  /// The sharding of one of the analysis's shared values, by its index.
  const ValueSharding &getShared(size_t index) const {
    return entries[sharedIndices[index]].sharding;
  }
  mlir::ArrayRef<Conflict> getConflicts() const { return conflicts; }

private:
  /// The sharding of a value, and where it comes from.
  struct ValueEntry {
    ValueSharding sharding;
    /// True if the value carries an annotation.
    bool annotated = false;
    /// Which dimensions of an annotated value are open.
    mlir::SmallVector<bool, 4> open;
    /// The axes over which the annotation declares the value unreduced. They shard no dimension.
    dist::AxisList unreduced;
    /// The dimensions of tokens of routed rows, behind that of the experts.
    int tokens = 0;
    /// The index in `routings` of the rows that ops connect with these rows.
    unsigned routing = 0;
    /// The first round that propagates the value's axes.
    int round = 0;
    /// The annotation that its axes come from.
    std::optional<mlir::Location> origin;
  };
  /// One class of one dimension of an operand or result of an op.
  struct Occurrence {
    ValueEntry *entry;
    /// For a state that is written, its first value.
    mlir::Value value;
    int dim, cls;
    /// True if the value is a result of the op, or the state that a return writes.
    bool isResult;
    /// The state that a return writes, or null.
    const SharedValue *shared;

    dist::AxisList &getAxes() const { return entry->sharding.dims[dim][cls]; }
  };
  /// The occurrences of an op that share a class; two at least.
  using Group = llvm::ArrayRef<Occurrence>;
  /// The groups of one op, as ranges of a list of occurrences.
  struct OpGroups {
    std::vector<Occurrence> occurrences;
    llvm::SmallVector<unsigned, 4> ends;
  };

  dist::AxisList getContractedAxes(mlir::Operation *op, const FactorAnalysis &factors) const;
  ValueEntry &getEntry(mlir::Value value) { return entries[entryIndices.find(value)->second]; }
  const ValueEntry &getEntry(mlir::Value value) const {
    return entries[entryIndices.find(value)->second];
  }
  mlir::LogicalResult addValue(mlir::Value value, dist::ShardingAttr attr, int round,
                               const FactorAnalysis &factors, dist::MeshAttr mesh);
  mlir::LogicalResult addShared(const FactorAnalysis &factors, dist::MeshAttr mesh);
  void addWrites(const FactorAnalysis &factors);
  void connectRows(mlir::ArrayRef<mlir::func::FuncOp> functions);
  dist::AxisList getFreeAxes(const ValueEntry &entry, int dim, mlir::ArrayRef<dist::Axis> axes) const;
  void visitNeighbours(const Occurrence &occurrence,
                       llvm::function_ref<void(mlir::Operation *)> visit) const;
  void propagate(mlir::ArrayRef<mlir::func::FuncOp> functions, const FactorAnalysis &factors);
  const OpGroups &getGroups(mlir::Operation *op, const FactorAnalysis &factors);
  void reportConflicts(mlir::Operation *op, const FactorAnalysis &factors);
  void visit(mlir::Operation *op, const FactorAnalysis &factors, int round,
             llvm::function_ref<void(const Occurrence &)> changed);

  /// A deque, since occurrences point to its elements.
  std::deque<ValueEntry> entries;
  llvm::DenseMap<mlir::Value, unsigned> entryIndices;
  /// The index of each shared value, and the shared value of an argument.
  llvm::SmallVector<unsigned> sharedIndices;
  llvm::DenseMap<mlir::Value, const SharedValue *> sharedValues;
  llvm::DenseMap<mlir::Operation *, OpGroups> groups;
  /// Routed rows, by the ops that connect them.
  std::vector<llvm::SmallVector<const ValueEntry *, 8>> routings;
  std::vector<Conflict> conflicts;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

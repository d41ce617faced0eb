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
/// - There are three rounds. The first propagates from parameters, the second also from
///   inputs, the third also from annotated interior values. A later round never changes the
///   axes that an earlier one gave a factor.
/// - Within a round, program order decides.
/// - An annotated value keeps its sharding, except for open dimensions (`?`).
/// - An axis shards at most one factor of a value.
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
  run(mlir::func::FuncOp func, const FactorAnalysis &factors, dist::MeshAttr mesh);

  const ValueSharding &get(mlir::Value value) const { return getState(value).sharding; }
  mlir::ArrayRef<Conflict> getConflicts() const { return conflicts; }

private:
  struct State {
    ValueSharding sharding;
    /// Whether the value carries an annotation.
    bool annotated = false;
    /// Which dimensions of an annotated value are open.
    mlir::SmallVector<bool, 4> open;
    /// The first round that propagates the value's axes.
    int round = 0;
    /// The annotation that its axes come from.
    std::optional<mlir::Location> origin;
  };
  /// One leaf of one dimension of an operand or result of an op.
  struct Place {
    State *state;
    mlir::Value value;
    int dim, leaf;
    /// Whether the value is a result of the op.
    bool isResult;

    dist::AxisList &getAxes() const { return state->sharding.dims[dim][leaf]; }
  };
  /// The places of an op that share a leaf; two at least.
  using Group = llvm::ArrayRef<Place>;
  /// The groups of one op, as ranges of a list of places.
  struct OpGroups {
    std::vector<Place> places;
    llvm::SmallVector<unsigned, 8> ends;
  };

  dist::AxisList getContractedAxes(mlir::Operation *op, const FactorAnalysis &factors) const;
  State &getState(mlir::Value value) { return states[stateIndices.find(value)->second]; }
  const State &getState(mlir::Value value) const {
    return states[stateIndices.find(value)->second];
  }
  mlir::LogicalResult addValue(mlir::Value value, int round, const FactorAnalysis &factors,
                               dist::MeshAttr mesh);
  const OpGroups &getGroups(mlir::Operation *op, const FactorAnalysis &factors);
  void reportConflicts(mlir::Operation *op, const FactorAnalysis &factors);
  void visit(mlir::Operation *op, const FactorAnalysis &factors, int round,
             llvm::function_ref<void(mlir::Value)> changed);

  /// A deque, since places point to its elements.
  std::deque<State> states;
  llvm::DenseMap<mlir::Value, unsigned> stateIndices;
  llvm::DenseMap<mlir::Operation *, OpGroups> groups;
  std::vector<Conflict> conflicts;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

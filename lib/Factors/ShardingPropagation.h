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

/// Spreads the shardings that values carry (`dist.sharding`) to all others,
/// forward and backward along the ops' factors, until nothing changes.
///
/// Parameters speak first, then inputs, then annotated interior values: what a
/// weight's sharding implies is not undone by the residual stream's. Within a
/// round, program order decides. A value that carries a sharding keeps it,
/// dimensions left open (`?`) excepted.
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
    /// Whether the value carries a sharding of its own.
    bool annotated = false;
    /// Whether dimensions of an annotated value stay open.
    mlir::SmallVector<bool, 4> open;
    /// The round from which on the value's axes spread.
    int round = 0;
    /// Where its axes come from.
    std::optional<mlir::Location> origin;
  };
  /// One leaf of one dimension of an operand or result of an op.
  struct Place {
    mlir::Value value;
    int dim, leaf;
  };
  using Group = mlir::SmallVector<Place, 3>;

  dist::AxisList getContractedAxes(mlir::Operation *op, const FactorAnalysis &factors) const;
  State &getState(mlir::Value value) { return states[stateIndices.find(value)->second]; }
  const State &getState(mlir::Value value) const {
    return states[stateIndices.find(value)->second];
  }
  void addState(mlir::Value value, State state) {
    stateIndices.try_emplace(value, states.size());
    states.push_back(std::move(state));
  }
  mlir::ArrayRef<Group> getGroups(mlir::Operation *op, const FactorAnalysis &factors);
  void visit(mlir::Operation *op, const FactorAnalysis &factors, int round, bool report,
             llvm::function_ref<void(mlir::Value)> changed);

  std::deque<State> states;
  llvm::DenseMap<mlir::Value, unsigned> stateIndices;
  llvm::DenseMap<mlir::Operation *, std::vector<Group>> groups;
  std::vector<Conflict> conflicts;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACTORS_SHARDINGPROPAGATION_H

//===- Partitioner.h - from global to local ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H
#define MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Reshard/Reshard.h"

#include <deque>

namespace meshwright {

/// Writes the SPMD program of one function.
class Partitioner {
public:
  Partitioner(mlir::func::FuncOp func, dist::MeshAttr mesh, mlir::FlatSymbolRefAttr symbol,
              const FactorAnalysis &factors)
      : func(func), mesh(mesh), symbol(symbol), factors(factors), resharder(mesh, symbol),
        builder(func.getContext()) {}

  /// Replaces the function's body and signature.
  mlir::LogicalResult run();

private:
  /// Axes for each leaf of each factor of an op.
  using Assignment = mlir::SmallVector<mlir::SmallVector<dist::AxisList, 2>, 8>;

  /// A local value and how it lies.
  struct Local {
    mlir::Value value;
    ValueSharding sharding;
    dist::AxisList unreduced;
  };

  /// What a global value is so far: either a local value in its own sharding, or
  /// a partial sum with what else is to be added once it is reduced.
  struct State {
    /// The sharding that the program gives the value, and the axes along which it
    /// declares it a partial sum.
    ValueSharding target;
    dist::AxisList unreduced;
    Local local;
    bool isDeferred = false;
    /// Global values still to be added; only of a deferred one.
    mlir::SmallVector<mlir::Value, 2> rest;
    /// Copies in other shardings.
    std::vector<std::pair<ValueSharding, mlir::Value>> copies;
  };

  State &getState(mlir::Value value) { return states[stateIndices.find(value)->second]; }
  const State &getState(mlir::Value value) const {
    return states[stateIndices.find(value)->second];
  }
  void addState(mlir::Value value, State state) {
    stateIndices.try_emplace(value, states.size());
    states.push_back(std::move(state));
  }

  mlir::LogicalResult readTargets();
  void choosePadding();
  dist::Layout getLayout(mlir::Value global, const ValueSharding &sharding,
                         mlir::ArrayRef<dist::Axis> unreduced = {}) const;
  mlir::RankedTensorType getLocalType(mlir::Value global, const ValueSharding &sharding) const;

  mlir::LogicalResult partition(mlir::Operation *op);
  /// The axes along which the keys of attention stay sharded; none elsewhere.
  dist::AxisList getRingAxes(nn::AttentionOp op) const;
  mlir::LogicalResult assignRing(nn::AttentionOp op, const dist::AxisList &axes,
                                 Assignment &assignment, dist::AxisList &queryAxes);
  mlir::FailureOr<mlir::Value> maskValues(mlir::Value value, mlir::Location loc);
  /// Attention whose keys stay sharded, in steps around a ring.
  mlir::LogicalResult partitionRing(nn::AttentionOp op, const dist::AxisList &axes);
  mlir::FailureOr<mlir::Value> generate(mlir::Operation *op, const ValueSharding &sharding);
  void widenPartial(Local &local, mlir::ArrayRef<dist::Axis> axes, mlir::Location loc);
  mlir::FailureOr<bool> joinSum(nn::AddOp op);
  mlir::FailureOr<bool> passPartialThrough(mlir::Operation *op);

  Assignment assign(mlir::Operation *op);
  ValueSharding project(mlir::Value value, const dist::FactorRule::ValueFactors &dims,
                        const FactorAnalysis::OpFactors &opFactors,
                        const Assignment &assignment) const;
  /// The sharding of `value`, which broadcasts against `target`, that goes with
  /// `sharding` of the target.
  ValueSharding projectBroadcast(mlir::Value value, mlir::Value target,
                                 const ValueSharding &sharding) const;

  /// The layout of a local value with what stands in its padding; null, after an
  /// error, where the program so far is wrong.
  const dist::Layout *derive(mlir::Value local);
  mlir::LogicalResult deriveOp(mlir::Operation *op);
  /// Zeroes what a contraction over a padded factor must not read.
  mlir::LogicalResult maskContraction(mlir::Operation *op, const Assignment &assignment,
                                      mlir::MutableArrayRef<mlir::Value> operands);
  /// Zeroes the padding of a selection that is summed over, in its condition.
  mlir::LogicalResult maskSelection(mlir::Operation *op, const Assignment &assignment,
                                    mlir::MutableArrayRef<mlir::Value> operands);
  /// Zeroes padding that would be read as indices.
  mlir::LogicalResult maskIndices(mlir::Operation *op, mlir::MutableArrayRef<mlir::Value> operands);
  mlir::Value mask(mlir::Value local, const dist::Layout &layout, int dim, mlir::Location loc);

  /// Writes the op on local operands.
  mlir::Operation *emit(mlir::Operation *op, mlir::ArrayRef<mlir::Value> operands,
                        mlir::ArrayRef<mlir::Type> types);

  /// Whether a partial sum may wait for its reader: that adds it to others.
  bool canWait(mlir::Value value) const;
  mlir::LogicalResult define(mlir::Value value, Local local,
                             mlir::SmallVector<mlir::Value, 2> rest = {});
  mlir::LogicalResult materialize(mlir::Value value);
  mlir::FailureOr<mlir::Value> use(mlir::Value value, const ValueSharding &sharding,
                                   mlir::Location loc);
  mlir::FailureOr<mlir::Value> reshard(mlir::Value global, const Local &from,
                                       const ValueSharding &to, mlir::Location loc);
  bool changesOrder(mlir::Value global, const ValueSharding &from, const ValueSharding &to) const;
  mlir::FailureOr<mlir::Value> reshardByLeaves(mlir::Value global, const Local &from,
                                               const ValueSharding &to, mlir::Location loc);

  mlir::func::FuncOp func;
  dist::MeshAttr mesh;
  mlir::FlatSymbolRefAttr symbol;
  const FactorAnalysis &factors;
  Resharder resharder;
  mlir::OpBuilder builder;
  /// One for each global value, in no order that matters.
  std::deque<State> states;
  llvm::DenseMap<mlir::Value, unsigned> stateIndices;
  /// Layouts of local values, derived as far as `derivedTo` and only where
  /// padding is in question.
  llvm::DenseMap<mlir::Value, std::vector<dist::Layout>> derived;
  mlir::Operation *derivedTo = nullptr;
  /// What local reshapes, and moves between layouts, were meant to make.
  llvm::DenseMap<mlir::Value, dist::Layout> known;
  /// Shardings that the signature gives the results.
  mlir::SmallVector<ValueSharding, 2> resultTargets;
  /// Padded size of each class of factors where it is sharded.
  mlir::SmallVector<int64_t> padded;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_PARTITIONER_H

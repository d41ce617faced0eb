//===- SentRowModels.h - which rows go to experts, and how ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_SENTROWMODELS_H
#define MESHWRIGHT_PASSES_PARTITION_SENTROWMODELS_H

#include "meshwright/passes/partition/Partitioner.h"

namespace meshwright {

/// The bytes that a token has on its way to experts, or back, at the expected load. All are sent to the other
/// ranks alike.
struct RowBytes {
  /// Of tokens that each rank gathers, to make the rows of its experts.
  double gathered;
  /// Of a row for each choice.
  double perChoice;
  /// Of a row for each rank that has experts of the token, with its choices.
  double perRank;

  double getLeast() const { return std::min(perChoice, perRank); }
};

/// Moves the rows of a dispatch, and sums that come of them.
class RowMover {
public:
  RowMover(nn::DispatchOp dispatch, Partitioner &partitioner);

  /// The axes over which rows are made at their tokens, to be sent to their experts. None if tokens are
  /// gathered instead.
  const std::optional<Assignment> &getTokens() const { return tokens; }
  /// The axes over which rows of a sum return to their tokens. None if they do not.
  std::optional<Assignment> getReturn(nn::CombineOp op);
  /// Returns true if rows that are in a sharding are with their experts.
  bool areAtExperts(nn::CombineOp op, const ValueSharding &rows);
  /// Returns true if sums over the experts of a rank return.
  bool sumsFirst(nn::CombineOp op);

  /// Returns true if the axes of each step shard one dimension of the tokens.
  bool movesOneDim();
  /// Returns true if rows go on from a rank of a group to the others.
  bool hasSteps() const { return steps.size() > 1; }
  mlir::LogicalResult send();
  /// Sums rows at their experts, moves the sums to the tokens, and sums these.
  mlir::LogicalResult combine(nn::CombineOp op, Partitioner::Local rows, const Assignment &atTokens);

private:
  const dist::FactorRule &rule() const { return opFactors.rule; }
  const ValueSharding &getTarget(nn::DispatchOp op) const { return partitioner.getForm(op.getResult()).target; }
  std::optional<Assignment> findTokens(nn::DispatchOp leader);
  bool hasSentChoices() { return partitioner.getSentRows(dispatch.getIndices(), axes).perChoice; }
  RowBytes getBytes(mlir::RankedTensorType rows);
  double getNumSent(mlir::RankedTensorType rows, int64_t groups);
  int64_t getTime(mlir::RankedTensorType rows, const RowBytes &bytes, int64_t numTokens,
                  mlir::ArrayRef<dist::AxisList> steps);
  void chooseSteps(nn::DispatchOp leader, const Assignment &atTokens, const RowBytes &bytes);
  dist::AxisList getAxes(size_t numSteps) const;
  int64_t getNumGroups(size_t numSteps) const { return getNumShards(getAxes(numSteps)); }
  ValueSharding getAtExperts();
  Assignment getAssignment(const dist::FactorRule::ValueFactors &dims, const FactorAnalysis::OpFactors &factors,
                           const ValueSharding &sharding) const;
  bool splitsTokens();
  bool leaveTokens(dist::Layout &layout, const dist::AxisList &gone);
  dist::Layout place(dist::Layout layout, int64_t rows, size_t numSteps);
  mlir::FailureOr<mlir::Value> move(mlir::Value rows, const dist::Layout &atTokens, int64_t groups, size_t from,
                                    size_t to, mlir::Location loc);
  mlir::Value getOffset(size_t numSteps, int64_t local);
  void stateAll(dist::LookupOpInterface op, int64_t all);
  mlir::Value dispatchShared(mlir::Value tokens, mlir::Value choices, size_t step);
  mlir::FailureOr<mlir::Value> sendChoices(mlir::Value choices, size_t step);

  nn::DispatchOp dispatch;
  Partitioner &partitioner;
  const FactorAnalysis::OpFactors &opFactors;
  /// The axes that shard experts, and tokens where rows are made.
  dist::AxisList axes;
  /// The axes of each step on the way to experts: all, or slower ones first.
  mlir::SmallVector<dist::AxisList, 2> steps;
  std::optional<Assignment> tokens;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_SENTROWMODELS_H

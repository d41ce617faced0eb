//===- Reshard.h - from one layout to another -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The cheapest sequence of collectives from one layout to another: a shortest
// path over layouts. All passes that move values use it.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_RESHARD_RESHARD_H
#define MESHWRIGHT_LIB_RESHARD_RESHARD_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "mlir/IR/Builders.h"

#include <memory>
#include <vector>

namespace meshwright {

/// A factor as the search sees it: a dimension of its own.
struct ReshardFactor {
  /// The tensor's dimension.
  int dim;
  /// 0, or 1 for a factor of the target's cut. If the two layouts cut a dimension into
  /// factors that have no common refinement, the factors of both cuts are listed. At any
  /// time one of the two cuts is unsharded.
  int cut;
  int64_t size;
  /// The order of its elements, which no plan changes.
  TokenOrder order = TokenOrder::Contiguous;
  int64_t orderRanks = 1;
  /// The name of its run-time size, if it has one.
  mlir::FlatSymbolRefAttr runtimeSize = {};
};

/// A layout during the move: for each factor of the plan its axes and padded
/// size.
struct ReshardLayout {
  llvm::SmallVector<dist::AxisList, 6> axes;
  llvm::SmallVector<int64_t, 6> padded;
  dist::AxisList unreduced;
};

struct ReshardStep {
  /// None for a local change of padding: zeros are appended at the tail of factor `to`, or
  /// padding is taken off it.
  std::optional<dist::CollectiveKind> kind;
  /// The axes of the group, in the order of its ranks' chunks.
  dist::AxisList axes;
  /// The factor that loses axes (all_gather, all_to_all) and the one that gains
  /// them (reduce_scatter, slice, all_to_all), or whose padding changes. -1 if there is
  /// none.
  int from = -1, to = -1;
  ReshardLayout before, after;

  bool isPad() const { return !kind && after.padded[to] > before.padded[to]; }
  bool isStrip() const { return !kind && !isPad(); }
  /// True if the step leaves every rank with the whole value.
  bool gathersWhole = false;
  /// Bytes of the step's result on a rank.
  int64_t resultBytes = 0;
  Cost cost;
};

struct ReshardPlan {
  llvm::SmallVector<ReshardFactor, 6> factors;
  std::vector<ReshardStep> steps;
  /// How unreduced values combine.
  dist::ReductionKind reduction = dist::ReductionKind::Sum;
  Cost cost;
};

struct ReshardOptions {
  /// The most bytes of an intermediate value on a rank; 0 is no bound. It does not hold
  /// for source and target.
  int64_t maxIntermediateBytes = 0;
};

/// The number of the first dimensions that count rows of a routed value: experts and tokens. Zero for other values.
/// One launch moves rows from the source to the target, since they are in the order of their senders behind it,
/// and no other collective brings them back into that of the tokens.
int64_t getNumRowDims(mlir::Value value);

/// Plans and writes moves between layouts on one mesh.
/// - Plans are cached by layouts, element size and dimensions of rows, for its own life or as `keepReshardPlans` says.
/// - Not safe for use from several threads.
class Resharder {
public:
  Resharder(dist::MeshAttr mesh, mlir::FlatSymbolRefAttr symbol, ReshardOptions options = {});
  ~Resharder();

  /// The cheapest plan. Fails if the layouts disagree in rank, true sizes or order, or if
  /// the source cannot become unreduced as the target is.
  /// \param rowDims  as `getNumRowDims` counts them
  mlir::FailureOr<const ReshardPlan *> plan(const dist::Layout &from, const dist::Layout &to,
                                            mlir::Type elementType, int64_t rowDims = 0);

  /// Plans and writes the move. Returns the local value in layout `to`, which is `value`
  /// if the layouts are equal.
  mlir::FailureOr<mlir::Value> reshard(mlir::OpBuilder &builder, mlir::Location location,
                                       mlir::Value value, const dist::Layout &from,
                                       const dist::Layout &to);

  const CostModel &getCostModel() const { return model; }

  struct Memo;

private:
  dist::MeshAttr mesh;
  mlir::FlatSymbolRefAttr symbol;
  ReshardOptions options;
  CostModel model;
  std::shared_ptr<Memo> memo;
};

/// From now on, the resharders of a context share their plans, and leave them to later ones. Not safe for a
/// context whose passes run on several threads, or outlive a change of a device.
void keepReshardPlans(mlir::MLIRContext *context);

/// Writes a plan for a local value. Returns the result of its last step.
mlir::Value emit(mlir::OpBuilder &builder, mlir::Location location, mlir::Value value,
                 const ReshardPlan &plan, dist::MeshAttr mesh, mlir::FlatSymbolRefAttr symbol);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_RESHARD_RESHARD_H

//===- PlacementAnalysis.h - how an SPMD program's values lie ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Derives the layout of every value of an SPMD function from those that its
// arguments carry, and proves on the way that the program is a placement of some
// global program: ops agree on how their operands lie, each unreduced axis
// disappears exactly once, padding is not read where it counts, all ranks of a
// group issue the same collectives, and results lie as the signature promises.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H
#define MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H

#include "meshwright/dialects/Dist/Layout.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

#include <deque>

namespace meshwright {

class PlacementAnalysis {
public:
  /// Derives the layouts of all values of an SPMD function. Fails, with one
  /// error, where the program is wrong.
  static mlir::FailureOr<PlacementAnalysis> run(mlir::func::FuncOp func);

  PlacementAnalysis(PlacementAnalysis &&) = default;
  PlacementAnalysis &operator=(PlacementAnalysis &&) = default;

  /// The layout of a value of the function; a scalar's has rank 0.
  const dist::Layout &getLayout(mlir::Value value) const { return *layouts.find(value)->second; }
  /// Null for a value that the analysis has not seen (made since).
  const dist::Layout *lookup(mlir::Value value) const { return layouts.lookup(value); }
  dist::MeshAttr getMesh() const { return mesh; }
  /// Whether local dimensions of size 1 let the value be read in several ways
  /// (see `transfer`); `getLayout` is one that all its users agree with.
  bool hasSeveralCandidates(mlir::Value value) const { return ambiguous.contains(value); }

private:
  friend class PlacementDerivation;
  PlacementAnalysis() = default;

  dist::MeshAttr mesh;
  /// Each layout once: programs have few.
  std::deque<dist::Layout> storage;
  llvm::DenseMap<mlir::Value, const dist::Layout *> layouts;
  llvm::DenseSet<mlir::Value> ambiguous;
};

/// The analysis as passes share it: one that has changed nothing since the last
/// proof preserves it, and any other change makes the next reader prove anew.
struct SharedPlacementAnalysis {
  explicit SharedPlacementAnalysis(mlir::Operation *func)
      : placement(PlacementAnalysis::run(mlir::cast<mlir::func::FuncOp>(func))) {}
  mlir::FailureOr<PlacementAnalysis> placement;
};

/// Proves the placement of an SPMD function, as PlacementAnalysis does; a global
/// function passes. Passes that move data end with it.
mlir::LogicalResult verifyPlacement(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H

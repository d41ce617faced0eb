//===- PlacementAnalysis.h - layouts of an SPMD program's values -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Derives the layout of every value of an SPMD function from the layouts of its
// arguments, and proves that the function is a placement of a global program.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H
#define MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H

#include "meshwright/dialects/Dist/Layout.h"

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

#include <deque>

namespace meshwright {

/// The layouts of all values of an SPMD function. An analysis exists only for a function
/// for which all of this holds:
/// - Each op has operands whose layouts agree.
/// - Each unreduced axis disappears exactly once.
/// - No op reads arbitrary padding where it affects a result.
/// - All ranks of a group issue the same collectives in the same order.
/// - Each result has the layout that the signature promises.
/// - Each op reads rows of experts of one routing (see Routings.h).
///
/// The walk visits each op once, and derives a layout once for equal ops whose operands
/// have equal layouts. Values with several candidate layouts are searched at the end (see
/// CandidateSearch.h).
class PlacementAnalysis {
public:
  /// Derives the layouts of all values of an SPMD function. Fails with one error if the
  /// program is wrong.
  static mlir::FailureOr<PlacementAnalysis> run(mlir::func::FuncOp func);

  PlacementAnalysis(PlacementAnalysis &&) = default;
  PlacementAnalysis &operator=(PlacementAnalysis &&) = default;

  /// The layout of a value of the function. A scalar has a layout of rank 0.
  const dist::Layout &getLayout(mlir::Value value) const { return *layouts.find(value)->second; }
  /// Null for a value that was created after the analysis.
  const dist::Layout *lookup(mlir::Value value) const { return layouts.lookup(value); }
  dist::MeshAttr getMesh() const { return mesh; }
  /// Returns true if the value had several candidate layouts (see `transfer`). `getLayout`
  /// returns one with which all its users are right.
  bool hasSeveralCandidates(mlir::Value value) const { return ambiguous.contains(value); }

private:
  friend class PlacementDerivation;
  PlacementAnalysis() = default;

  dist::MeshAttr mesh;
  /// Each distinct layout once. Programs have few.
  std::deque<dist::Layout> storage;
  ProgramMap<mlir::Value, const dist::Layout *> layouts;
  ProgramSet<mlir::Value> ambiguous;
};

/// The analysis as passes share it. A pass that changes nothing preserves it. After any
/// change the next user proves the function again.
struct SharedPlacementAnalysis {
  explicit SharedPlacementAnalysis(mlir::Operation *func)
      : placement(PlacementAnalysis::run(mlir::cast<mlir::func::FuncOp>(func))) {}
  mlir::FailureOr<PlacementAnalysis> placement;
};

/// Returns true if a value of an SPMD function may be padded: an argument or a result is, or an op
/// adds padding. Only then are the contents of elements derived.
bool mayPad(mlir::func::FuncOp func, dist::MeshAttr mesh);

/// Proves the placement of an SPMD function (see PlacementAnalysis). Succeeds for a global
/// function. Passes that move data end with this.
mlir::LogicalResult verifyPlacement(mlir::func::FuncOp func);
/// Returns true if `verifyPlacement` succeeds. Emits no errors.
bool isPlacementProved(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_PLACEMENTANALYSIS_H

//===- PlacementDerivation.h - the walk of the placement proof --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PLACEMENTDERIVATION_H
#define MESHWRIGHT_LIB_PLACEMENT_PLACEMENTDERIVATION_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/CandidateCombinations.h"
#include "meshwright/lib/Placement/CandidateSearch.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/SCF/IR/SCF.h"

namespace meshwright {

/// The walk that fills an analysis.
/// - `visit` derives the layouts of an op's results in program order.
/// - `visitCandidates` does so for an op with several candidate layouts, and records which
///   combinations of candidates are right. The first candidate stands for the value during
///   the walk.
/// - `resolve` chooses one candidate of each value after the walk.
class PlacementDerivation {
public:
  PlacementDerivation(mlir::func::FuncOp func, PlacementAnalysis &analysis)
      : func(func), analysis(analysis), mesh(analysis.mesh), states(nn::getStates(func)),
        memo(mesh, analysis.storage) {}
  /// Tries candidates that few programs need, if `isExhaustive`.
  mlir::LogicalResult run(bool isExhaustive);

private:
  mlir::FailureOr<dist::Layout> getBoundary(mlir::DictionaryAttr attributes, mlir::Type type,
                                            llvm::StringRef what, unsigned i);
  mlir::LogicalResult checkState(mlir::StringAttr name, const dist::Layout &layout,
                                 llvm::StringRef where);
  std::string spellExactly(const dist::Layout &layout) const;
  mlir::LogicalResult addArguments();
  mlir::LogicalResult visitBlock(mlir::Block &block);
  mlir::LogicalResult visit(mlir::Operation *op);
  using TransferOperands = llvm::function_ref<mlir::FailureOr<TransferMemo::Outcome>(
      mlir::ArrayRef<LayoutRef>, bool reports)>;
  mlir::LogicalResult addLink(CandidateLink link, mlir::ArrayRef<CandidateCombination> combinations,
                              TransferOperands transfer);
  mlir::LogicalResult visitCandidates(mlir::Operation *op);
  Candidates getPlausible(mlir::Operation *op, unsigned operand);
  mlir::LogicalResult visitIf(mlir::scf::IfOp op);
  mlir::LogicalResult visitLaunch(mlir::Operation *op, mlir::Block &block);
  /// Gives the values `to` the layouts of the values `from`, of which they are new names.
  mlir::LogicalResult passOn(mlir::Operation *op, mlir::ValueRange from, mlir::ValueRange to);
  mlir::LogicalResult visitReturn(mlir::func::ReturnOp op);
  mlir::LogicalResult refuseResult(mlir::func::ReturnOp op, unsigned i, llvm::StringRef where,
                                   const dist::Layout &promised);
  /// Records scalars that differ between ranks, and refuses uses of them in data.
  mlir::LogicalResult visitRankDependent(mlir::Operation *op, bool &handled);
  mlir::LogicalResult checkCollective(mlir::Operation *op);
  /// Follows parts of sums that arguments are, and checks products with them.
  mlir::LogicalResult visitStatedParts(mlir::Operation *op);
  mlir::LogicalResult resolve();

  void set(mlir::Value value, LayoutRef candidate) { analysis.layouts[value] = candidate; }
  LayoutRef get(mlir::Value value) const { return analysis.layouts.lookup(value); }
  Candidates getCandidates(mlir::Value value) const {
    auto it = ambiguous.find(value);
    return it == ambiguous.end() ? Candidates{get(value)} : it->second;
  }
  void explain(mlir::InFlightDiagnostic &diagnostic, mlir::Operation *op, unsigned operand) const;

  mlir::func::FuncOp func;
  PlacementAnalysis &analysis;
  dist::MeshAttr mesh;
  /// The states of the module, by name.
  llvm::DenseMap<mlir::StringAttr, nn::StateOp> states;
  TransferMemo memo;
  /// Values with several candidates, and the ops that use or define them, in program order.
  ProgramMap<mlir::Value, Candidates> ambiguous;
  mlir::SmallVector<CandidateLink> links;
  /// Values that are parts of sums as the signature states, and not because an op left a sum open.
  ProgramSet<mlir::Value> statedParts;
  /// The axes along which a scalar differs between ranks, and the coordinate it is from.
  struct Dependence {
    dist::AxisList axes;
    mlir::Value index;
  };
  ProgramMap<mlir::Value, Dependence> dependent;
  /// The conditions around the current op that differ between ranks, outermost first.
  mlir::SmallVector<mlir::Value, 2> conditions;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_PLACEMENTDERIVATION_H

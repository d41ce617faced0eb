//===- LayoutTransfer.h - layouts through an op -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The rules by which layouts pass through an op of an SPMD program: nn ops by
// their factor rules, collectives by the table of the layout algebra. The
// partitioner asks what it has made, the placement verifier whether it is right.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H
#define MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright {

/// Layouts of an op's results.
using ResultLayouts = mlir::SmallVector<dist::Layout, 1>;

/// What a transfer is about, and how it reports.
struct TransferContext {
  mlir::Operation *op;
  /// One for each operand; a scalar (not a tensor) has a layout of rank 0.
  mlir::ArrayRef<const dist::Layout *> operands;
  dist::MeshAttr mesh;
  mlir::function_ref<mlir::InFlightDiagnostic()> emitError;
  /// Attaches to an error a note on where operand `i` got the property that the
  /// op objects to; may be null.
  mlir::function_ref<void(mlir::InFlightDiagnostic &, unsigned)> explain = nullptr;
};

/// Layouts of the op's results (local op, or collective), canonical; or an error
/// that says in the algebra's words what is wrong.
///
/// A reshape to or from local dimensions of size 1 may be read in several ways:
/// [2, 128], the last dimension sharded over "tp", is as [2, 1, 128] either one
/// head of eight or a chunk of a row. All candidates describe the same elements on
/// the same ranks. A sum or maximum of equal elements (a broadcast's) is as good
/// one of several parts. `alternatives`, where given, receives the layouts of the
/// other candidates of the one result.
mlir::FailureOr<ResultLayouts>
transfer(const TransferContext &context,
         mlir::SmallVectorImpl<dist::Layout> *alternatives = nullptr);

/// The same for layouts at hand.
mlir::FailureOr<ResultLayouts>
transfer(mlir::Operation *op, mlir::ArrayRef<dist::Layout> operands, dist::MeshAttr mesh,
         mlir::function_ref<mlir::InFlightDiagnostic()> emitError,
         mlir::SmallVectorImpl<dist::Layout> *alternatives = nullptr);

/// Whether a value that lies as `layout` also lies as `expected`: the same
/// sharding and unreduced axes, where uniform factors have every layout.
bool isLayout(const dist::Layout &layout, const dist::Layout &expected, dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H

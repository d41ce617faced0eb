//===- LayoutTransfer.h - layouts through an op -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Derives the layouts of an op's results from the layouts of its operands, in an SPMD
// program. An nn op follows its factor rule, or its model (Models.h); a collective follows the
// table of the layout algebra. The partitioner uses this to know the layouts of the ops that it writes, and the
// placement verifier to prove that a program is right.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H
#define MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H

#include "meshwright/dialects/Dist/FactorRule.h"
#include "meshwright/dialects/Dist/Layout.h"

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace meshwright {

class ValueNumbers;

/// Gives ops whose factor rule does not say how layouts pass them their models when their dialect is
/// loaded.
void registerPlacementModels(mlir::DialectRegistry &registry);

/// Layouts of an op's results.
using ResultLayouts = mlir::SmallVector<dist::Layout, 1>;

/// The input of a transfer, and how it reports errors.
struct TransferContext {
  mlir::Operation *op;
  /// One for each operand. A scalar (not a tensor) has a layout of rank 0.
  mlir::ArrayRef<const dist::Layout *> operands;
  dist::MeshAttr mesh;
  mlir::function_ref<mlir::InFlightDiagnostic()> emitError;
  /// Attaches a note to an error: where operand `i` got the property that the op refuses.
  /// May be null.
  mlir::function_ref<void(mlir::InFlightDiagnostic &, unsigned)> explain = nullptr;
  /// False for a program without padding. The contents of elements are then not derived.
  bool tracksPadding = true;
  /// Tries candidates of a reshape that few programs need.
  bool isExhaustive = false;
  /// If given, set where conditions of padding may name operands of the op, so that they hold
  /// for this op alone.
  bool *namesOperands = nullptr;
  /// The factor rule of the op, where the caller knows it.
  const dist::FactorRule *rule = nullptr;
  /// If given, the op is a collective, which moves its operands one by one. Then this operand
  /// alone is read, and this result alone is returned.
  std::optional<unsigned> only = std::nullopt;
  /// Numbers of equal values, which conditions of padding and parts of attention name.
  ValueNumbers *numbers = nullptr;

  bool reads(unsigned operand) const { return !only || *only == operand; }
};

/// Returns the canonical layouts of the op's results. Fails with an error in the terms of
/// the layout algebra if the op is wrong for these operands.
///
/// A reshape to or from local dimensions of size 1 has a result with several candidate layouts. For
/// example, [2, 128] with the last dimension sharded over "tp" becomes [2, 1, 128]: either one head
/// of eight, or a chunk of a row. All candidates describe the same elements on the same ranks. If
/// `alternatives` is given, it receives the candidates after the first.
mlir::FailureOr<ResultLayouts>
transfer(const TransferContext &context,
         mlir::SmallVectorImpl<dist::Layout> *alternatives = nullptr);

/// Returns true if the results of an op may have several candidate layouts even where its operands
/// have one each, as those of a reshape.
bool mayHaveCandidates(mlir::Operation *op);

/// Checks an op on parts of a sum, its operand `operand`, that a user states: they may be any numbers
/// that make up the sum, as large ones of opposite signs. A product with each of them must be as
/// finite as they are, else it may be NaN where the product with their sum is zero.
mlir::LogicalResult checkStatedParts(const TransferContext &context, unsigned operand);

/// Sets what is known of the elements of an argument with these attributes. Padding is zero.
/// Elements of a parameter are at most `nn.magnitude`, which is checked where a value is given
/// to it. Inputs and state may hold anything.
void describeArgument(dist::Layout &layout, mlir::DictionaryAttr attributes, mlir::Type type);

/// Returns true if two layouts have the same sharding, and are uniform along the same factors. An
/// element of a value may stand for equal ones, or be the only one.
bool isSameCandidate(const dist::Layout &a, const dist::Layout &b);

/// Returns true if a value in `layout` also has the layout `expected`: the same sharding and
/// the same unreduced axes. A uniform factor has every layout.
bool isLayout(const dist::Layout &layout, const dist::Layout &expected, dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFER_H

//===- TransferMemo.h - transfers of equal ops, computed once ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_TRANSFERMEMO_H
#define MESHWRIGHT_LIB_PLACEMENT_TRANSFERMEMO_H

#include "meshwright/dialects/Dist/Events.h"
#include "meshwright/dialects/Dist/FactorRule.h"
#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/ValueNumbers.h"
#include "meshwright/lib/Support/OpSignature.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "llvm/ADT/DenseMap.h"

#include <deque>

namespace meshwright {

/// A layout of a memo. Equal layouts have equal references.
using LayoutRef = const dist::Layout *;
using Candidates = mlir::SmallVector<LayoutRef, 2>;

/// Remembers transfers. The layers of a model repeat a few of them.
///
/// A transfer that is remembered depends on the signature of its op and on the layouts of its
/// operands alone. Neither changes while the memo lives, so nothing is ever dropped from it:
/// layouts are immutable, and the owner does not change or erase an op after its transfer.
class TransferMemo {
public:
  /// `storage` receives each distinct layout once.
  TransferMemo(dist::MeshAttr mesh, std::deque<dist::Layout> &storage)
      : mesh(mesh), storage(storage),
        operandsAttr(mlir::StringAttr::get(mesh.getContext(), dist::kOperandsAttr)),
        resultsAttr(mlir::StringAttr::get(mesh.getContext(), dist::kResultsAttr)) {}
  TransferMemo(const TransferMemo &) = delete;

  /// The layouts of an op's results. If the op has one result with several candidate
  /// layouts, `alternatives` has the candidates after the first.
  struct Outcome {
    mlir::SmallVector<LayoutRef, 1> results, alternatives;
  };

  LayoutRef intern(const dist::Layout &layout);

  /// Transfers layouts through the op, or recalls what an equal op gave for the same ones.
  /// Errors are not remembered: each names its op.
  mlir::FailureOr<Outcome>
  transfer(mlir::Operation *op, mlir::ArrayRef<LayoutRef> operands,
           mlir::function_ref<mlir::InFlightDiagnostic()> emitError,
           mlir::function_ref<void(mlir::InFlightDiagnostic &, unsigned)> explain = nullptr) {
    return transfer(op, operands, std::nullopt, emitError, explain);
  }
  /// Transfers the layout of one operand through a collective (see `TransferContext::only`).
  mlir::FailureOr<Outcome>
  transferOne(mlir::Operation *op, unsigned operand, LayoutRef layout,
              mlir::function_ref<mlir::InFlightDiagnostic()> emitError,
              mlir::function_ref<void(mlir::InFlightDiagnostic &, unsigned)> explain = nullptr) {
    mlir::SmallVector<LayoutRef, 4> operands(op->getNumOperands(), layout);
    return transfer(op, operands, operand, emitError, explain);
  }

  /// The factor rule of an op; null for an op without one.
  const dist::FactorRule *getRule(mlir::Operation *op);

  /// False for a program without padding (see `TransferContext`).
  bool tracksPadding = true;
  /// See `TransferContext`.
  bool isExhaustive = false;

private:
  mlir::FailureOr<Outcome>
  transfer(mlir::Operation *op, mlir::ArrayRef<LayoutRef> operands, std::optional<unsigned> only,
           mlir::function_ref<mlir::InFlightDiagnostic()> emitError,
           mlir::function_ref<void(mlir::InFlightDiagnostic &, unsigned)> explain);

  dist::MeshAttr mesh;
  std::deque<dist::Layout> &storage;
  /// The name of the attribute, for fast lookups.
  bool dependsOnLayoutsOnly(mlir::Operation *op) const;

  mlir::StringAttr operandsAttr, resultsAttr;
  /// The events that conditions and covers of layouts name.
  padding::EventTable events;
  ValueNumbers numbers;
  struct Transfer {
    mlir::Operation *op;
    mlir::SmallVector<LayoutRef, 4> operands;
    std::optional<unsigned> only;
    Outcome outcome;
  };
  std::deque<Transfer> transfers;
  /// The keys are hashes of layouts, and of signatures with the layouts of operands.
  llvm::DenseMap<size_t, mlir::SmallVector<LayoutRef, 1>> interned;
  llvm::DenseMap<size_t, mlir::SmallVector<const Transfer *, 1>> known;
  llvm::DenseMap<mlir::Operation *, std::optional<dist::FactorRule>, OpSignature> rules;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_PLACEMENT_TRANSFERMEMO_H

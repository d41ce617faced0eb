//===- Call.h - the steps of a call -----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A call of an entry runs a few functions, one after another: these are its steps. The attribute
// `nn.call` of the entry lists them. Signatures, reports, memory plans and the runtime's
// description of a program follow from this list.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_CALL_H
#define MESHWRIGHT_DIALECTS_NN_CALL_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright::nn {

/// On an entry: the steps of a call (`CallAttr`). Without it a call runs the entry alone.
inline constexpr llvm::StringLiteral kCallAttr = "nn.call";

/// A step of a call. It runs its function on each of its chunks in turn: up to `times` times, until
/// the output `until` is true.
///
/// - A chunk of an input or an output is a contiguous part of its dimension 0. Values without
///   dimensions, and inputs with `nn.batch = false`, are the same in all runs.
/// - Inputs and outputs of the call are those of all steps, joined by name. They have the chunks of
///   all steps, in order. Those of the entry itself come first.
/// - The last step is the entry, once. The steps before it write transient states alone, so a call
///   that fails in any step leaves the state as it was.
struct CallStep {
  mlir::FunctionOpInterface function;
  int64_t chunks = 1, times = 1;
  /// Empty if nothing ends the step early.
  llvm::StringRef until = {};

  /// The most runs that the step makes.
  int64_t getRuns() const { return chunks * times; }
};

/// Returns the steps of a call of an entry, at least one. Leaves out those whose function the
/// module lacks, which `verifyCall` refuses.
llvm::SmallVector<CallStep> getSteps(mlir::FunctionOpInterface entry);

/// Verifies the functions of the steps of an entry:
///  - each has a body, and those before the last are private and have no steps of their own;
///  - those before the last write transient states alone;
///  - an output that ends a step is of type tensor<i1>;
///  - inputs of one name have one global type, and the same statement about the batch;
///  - outputs of one name have one global type.
mlir::LogicalResult verifyCall(mlir::FunctionOpInterface entry);

/// Verifies what an entry's attribute `nn.call` states about the entry itself: it is the last step,
/// which runs once, and no other.
mlir::LogicalResult verifyCallAttr(mlir::Operation *op, mlir::Attribute value);

/// Returns entries, then the other functions that steps of their calls run, each once.
llvm::SmallVector<mlir::FunctionOpInterface>
getRunFunctions(llvm::ArrayRef<mlir::FunctionOpInterface> entries);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_CALL_H

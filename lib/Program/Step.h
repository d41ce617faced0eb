//===- Step.h - what a lowered program does, step by step -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PROGRAM_STEP_H
#define MESHWRIGHT_LIB_PROGRAM_STEP_H

#include "meshwright/lib/Program/Lower.h"

#include <map>

namespace meshwright::lower {

/// A call into the runtime: `callee(context, op, descriptor, numbers..., buffers)`.
struct Step {
  Step(mlir::Operation *op, std::string callee) : op(op), callee(std::move(callee)) {}

  /// Named in errors and traces.
  mlir::Operation *op;
  std::string callee;
  /// Passed by address, where there is one.
  llvm::SmallVector<int64_t> descriptor;
  llvm::SmallVector<int64_t> numbers;
  /// Null where an optional operand is absent.
  llvm::SmallVector<mlir::Value> inputs;
  llvm::SmallVector<mlir::Value> outputs;
  enum Passing {
    /// A pointer each.
    Single,
    /// Inputs and outputs as two arrays.
    TwoArrays,
    /// The kernel, and inputs and outputs as one array.
    Kernel,
  } passing = Single;
  /// The kernel of a launch.
  std::string kernel = {};
};

/// The runtime call that performs an op. Fails after a diagnostic.
mlir::FailureOr<Step> getRuntimeCall(mlir::Operation *op);
/// Whether there is one.
bool isRuntimeCall(mlir::Operation *op);

/// The name of an op in errors: its kind, the model's module and the source line.
std::string describeOp(mlir::Operation *op);

/// Where a value lies.
struct Place {
  enum Kind { Arena, Argument, Prepared, Constant } kind;
  /// Offset in the arena, or index.
  int64_t index;
  /// Bytes behind that.
  int64_t offset = 0;
};

/// Adds the entry, a list of the steps, to the program's module.
/// `getPlace` has a place for every value that steps and results name.
void emitEntry(LoweredProgram &program, llvm::ArrayRef<Step> steps, mlir::ValueRange results,
               llvm::function_ref<Place(mlir::Value)> getPlace);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_PROGRAM_STEP_H

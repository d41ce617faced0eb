//===- Step.h - what a lowered program does, step by step -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_PROGRAM_STEP_H
#define MESHWRIGHT_LIB_DRIVER_PROGRAM_STEP_H

#include "meshwright/lib/Driver/Program/Lower.h"

#include <map>

namespace meshwright::lower {

/// A call into the runtime: `callee(context, op, descriptor, numbers..., buffers)`.
struct Step {
  Step(mlir::Operation *op, std::string callee) : op(op), callee(std::move(callee)) {}

  /// The op that errors and traces name.
  mlir::Operation *op;
  std::string callee;
  /// Passed by address, unless it is empty.
  Descriptor descriptor;
  llvm::SmallVector<int64_t> numbers;
  /// The result of the entry whose log the call gets behind its buffers.
  std::optional<int64_t> log = {};
  /// Null for an optional operand that is absent.
  llvm::SmallVector<mlir::Value> inputs;
  llvm::SmallVector<mlir::Value> outputs;
  enum Passing {
    /// A pointer for each input and output.
    Single,
    /// Inputs and outputs as two arrays.
    TwoArrays,
    /// The kernel, and inputs and outputs as one array.
    Kernel,
  } passing = Single;
  /// The kernel of a launch, whether it reads by index, its scratch memory, and its tensor maps
  /// (`mw_rt_device_kernel`).
  std::string kernel = {};
  bool checksIndices = false;
  int64_t scratchBytes = 0;
  llvm::SmallVector<mw_rt_tensor_map> tensorMaps = {};
};

/// The runtime call that performs an op. Fails after an error, for example if the runtime does
/// not perform the op.
mlir::FailureOr<Step> getRuntimeCall(mlir::Operation *op);

/// The form of a weight that an op makes.
mw_rt_packing getPacking(rt::PrepareOp op);

/// The runtime call that replaces rows of a state in place. The log of result `result` of the entry
/// gets the old rows at `offset`.
Step getRowUpdate(mlir::Operation *op, int64_t result, int64_t offset);

/// Appends the fields of `mw_rt_axes`. Fails after an error at the op.
mlir::LogicalResult getRankAxes(mlir::Operation *op, llvm::ArrayRef<dist::Axis> axes,
                                llvm::SmallVectorImpl<int64_t> &fields);

/// The name of an op in errors: its kind, the model's module and the source line.
std::string describeOp(mlir::Operation *op);

/// The place of a value.
struct Place {
  enum Kind { Arena, Argument, Prepared, Constant, Result } kind;
  /// The offset in the arena, or the index of the argument, packed weight, constant or result,
  /// for which the caller passes memory.
  int64_t index;
  /// Bytes from there to the value, which may be a part of it.
  int64_t offset = 0;
};

/// Adds the entry, which executes the steps, to the program's module. `getPlace` must return a
/// place for each value of the steps and for each result.
void emitEntry(LoweredProgram &program, llvm::ArrayRef<Step> steps, mlir::ValueRange results,
               llvm::function_ref<Place(mlir::Value)> getPlace);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_DRIVER_PROGRAM_STEP_H

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
  Step(mlir::Operation *op, std::string callee, RuntimeCall call)
      : op(op), callee(std::move(callee)), descriptor(std::move(call.descriptor)),
        inputs(std::move(call.inputs)) {}

  /// The op that errors and traces name.
  mlir::Operation *op;
  std::string callee;
  /// Passed by address, unless it is empty.
  Descriptor descriptor;
  llvm::SmallVector<int64_t> numbers;
  /// Null for an optional operand that is absent.
  llvm::SmallVector<mlir::Value> inputs;
  llvm::SmallVector<mlir::Value> outputs;
  /// The result of the entry whose log is the last buffer of a call.
  std::optional<int64_t> log = {};
  enum Passing {
    /// A pointer for each input and output.
    Single,
    /// Inputs and outputs as one array.
    OneArray,
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

/// The name of an op in errors: its kind, the model's module and the source line.
std::string describeOp(mlir::Operation *op);

/// Where a value is in memory.
struct Storage {
  enum Kind { Arena, Argument, Prepared, Constant, Result } kind;
  /// The offset in the arena, or the index of the argument, packed weight, constant or result,
  /// for which the caller passes memory.
  int64_t index;
  /// Bytes from there to the value, which may be a section of it.
  int64_t offset = 0;
};

/// The bytes of the arena that values take while each step runs, without the gaps between them.
std::vector<int64_t> countArena(llvm::ArrayRef<Step> steps, mlir::ValueRange results,
                                llvm::function_ref<Storage(mlir::Value)> getStorage);

/// Adds the entry, which executes the steps, to the program's module. `getStorage` must return
/// the storage of each value of the steps and of each result.
void emitEntry(LoweredProgram &program, llvm::ArrayRef<Step> steps, mlir::ValueRange results,
               llvm::function_ref<Storage(mlir::Value)> getStorage);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_DRIVER_PROGRAM_STEP_H

//===- Step.h - what a lowered program does, step by step -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_LOWER_STEP_H
#define MESHWRIGHT_PASSES_LOWER_STEP_H

#include "KernelBuilder.h"
#include "Lower.h"

namespace meshwright::lower {

/// A call of a kernel, or of the runtime.
struct Step {
  Step(mlir::Operation *op, std::string callee, bool isKernel = false)
      : op(op), callee(std::move(callee)), isKernel(isKernel) {}

  mlir::Operation *op;
  /// A kernel's name, or that of a runtime function.
  std::string callee;
  bool isKernel;
  /// Null where an optional operand is absent.
  llvm::SmallVector<mlir::Value> inputs;
  llvm::SmallVector<mlir::Value> outputs;
  /// Runtime calls only.
  llvm::SmallVector<int64_t> descriptor;
  /// Pass inputs and outputs as two arrays.
  bool asArrays = false;
  /// A kernel that the runtime calls.
  std::string kernelArgument;
  /// For probes: the number passed.
  int64_t probe = -1;
};

/// The runtime call that performs an op; `kernels` builds what it calls back.
/// Fails after a diagnostic.
mlir::FailureOr<Step> getRuntimeCall(mlir::Operation *op, KernelBuilder &kernels);
/// Whether there is one.
bool isRuntimeCall(mlir::Operation *op);

} // namespace meshwright::lower

#endif // MESHWRIGHT_PASSES_LOWER_STEP_H

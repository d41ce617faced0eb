//===- RandomSteps.h - random numbers of steps ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A program draws its random numbers from two states: a seed, and the number of the step.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_RANDOMSTEPS_H
#define MESHWRIGHT_PASSES_TRAIN_RANDOMSTEPS_H

#include "meshwright/passes/train/States.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Drops nothing in a function: makes its dropout ops, and attention with dropout, plain ones.
void dropNothing(mlir::func::FuncOp func);
/// Sets the seed of a module that draws random numbers.
void setSeed(mlir::ModuleOp module, int64_t seed);
/// Makes the number of the next step one higher, if random numbers depend on it.
void countSteps(mlir::func::FuncOp step, States &states);
/// Replaces the number of the step that a function reads by another one. `number` writes it from
/// that of the step, unless the function draws nothing.
void renumberSteps(mlir::func::FuncOp func, States &states,
                   llvm::function_ref<mlir::Value(nn::Writer &, mlir::Value)> number);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_RANDOMSTEPS_H

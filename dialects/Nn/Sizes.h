//===- Sizes.h - sizes that come when a program runs ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The argument of a function that has the run-time size of a name (`nn.size`).
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_SIZES_H
#define MESHWRIGHT_DIALECTS_NN_SIZES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright::nn {

/// The argument that has the run-time size of this name; null if there is none.
mlir::BlockArgument findSize(mlir::func::FuncOp func, mlir::StringAttr name);

/// As above; emits an error at `loc` if there is none.
mlir::FailureOr<mlir::BlockArgument> getSize(mlir::func::FuncOp func, mlir::StringAttr name,
                                             mlir::Location loc);

/// Returns true if the program shows that each number is at most the run-time size of this name:
/// the size itself, repeated, or the smaller of it and another number. `getSource` looks through
/// ops of other dialects that keep a value.
bool isAtMostSize(mlir::Value numbers, mlir::StringAttr name,
                  llvm::function_ref<mlir::Value(mlir::Value)> getSource);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_SIZES_H

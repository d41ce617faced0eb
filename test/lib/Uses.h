//===- Uses.h - values, and what depends on them ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_LIB_USES_H
#define MESHWRIGHT_TEST_LIB_USES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright::test {

/// Returns true if a value is a tensor of floats.
bool isFloats(mlir::Value value);

/// Returns true if an op reads an operand. It may only wait for it.
bool reads(mlir::OpOperand &operand);

/// The values on which results of a function depend.
llvm::DenseSet<mlir::Value> getReadValues(mlir::func::FuncOp func);

/// Gives the users of a value the one that `make` makes behind it.
void rewire(mlir::Value value, llvm::function_ref<mlir::Value(mlir::OpBuilder &)> make);

/// Returns true if the order of the elements along a dimension does not matter: they are summed, or ops that
/// treat them alike give elements that are.
bool isSummed(mlir::Value value, int64_t dim);

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_LIB_USES_H

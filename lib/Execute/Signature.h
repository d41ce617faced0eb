//===- Signature.h - the arguments and results of entries -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_SIGNATURE_H
#define MESHWRIGHT_LIB_EXECUTE_SIGNATURE_H

#include "meshwright/runtime/include/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace meshwright {

/// The attribute of arguments and results that are a state.
inline constexpr llvm::StringLiteral kStateAttr = "nn.state";

/// The entries of a module: its public functions with a body, in order, `main` first.
llvm::SmallVector<mlir::func::FuncOp> getEntries(mlir::ModuleOp module);

/// Adds an entry to a program's description: its signature, and the parameters and states that no
/// entry before it has. Fails after an error.
mlir::LogicalResult readSignature(mlir::func::FuncOp function, rt::ProgramDescription &program);

/// Adds the parameters that only the initial values of states need.
void addInitialParameters(rt::ProgramDescription &program);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_SIGNATURE_H

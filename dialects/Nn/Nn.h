//===- Nn.h - the nn dialect ------------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NN_H
#define MESHWRIGHT_DIALECTS_NN_NN_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Nn/Routed.h"

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/TensorEncoding.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include <optional>

#include "meshwright/dialects/Nn/NnDialect.h.inc"

#include "meshwright/dialects/Nn/NnEnums.h.inc"

#define GET_ATTRDEF_CLASSES
#include "meshwright/dialects/Nn/NnAttrs.h.inc"

namespace meshwright::nn {
/// Cotangents of one op (`passes/differentiate/Vjp.h`).
class Vjp;
} // namespace meshwright::nn

#include "meshwright/dialects/Nn/NnInterfaces.h.inc"

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnOps.h.inc"

namespace meshwright::nn {

/// The shape to which `shapes` broadcast by NumPy's rules, or none if they do not
/// broadcast.
std::optional<llvm::SmallVector<int64_t>>
broadcastShapes(llvm::ArrayRef<llvm::ArrayRef<int64_t>> shapes);

/// The factor rule of a reshape between two shapes with the same number of elements: the
/// shortest list of factors of which the dimensions of both shapes are products. If
/// boundaries of the shapes do not meet (6x4 -> 8x3), each dimension between two common
/// boundaries gets a Special factor of its own. Dimensions of size 1 get none.
dist::FactorRule getReshapeFactorRule(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to);

/// The entries of a module: its public functions that have a body. `@main` is the first and
/// the default; without it the first in the module is.
llvm::SmallVector<mlir::FunctionOpInterface> getEntries(mlir::ModuleOp module);

/// The bound on the elements of a parameter with these attributes. Infinity if there is none.
double getParameterMagnitude(mlir::DictionaryAttr attributes);

/// Returns true if a number is an element of a tensor of that element type.
bool isElement(mlir::TypedAttr number, mlir::Type elementType);

/// The bytes of a number, as the runtime stores it.
std::string getElementBytes(mlir::TypedAttr number);

/// The choices of the routings of a block, as the roots of `getChoicesRoot`, with their first op, in the
/// order of the ops: a program numbers its layers of experts so.
llvm::SmallVector<std::pair<mlir::Value, DispatchOp>> getRoutings(mlir::Block &block);

/// The states of the module around an op, or of a module, by name.
llvm::DenseMap<mlir::StringAttr, StateOp> getStates(mlir::Operation *from);

/// The state of this name in the module around an op, or null. Reads all states: for more than a
/// few names, take `getStates`.
StateOp lookupState(mlir::Operation *from, mlir::StringAttr name);

/// Verifies an argument or a result of a function that stands for a state (`nn.state`).
mlir::LogicalResult verifyBoundState(mlir::FunctionOpInterface function, unsigned index,
                                     bool isResult, llvm::StringRef name);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_NN_H

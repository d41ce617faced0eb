//===- Differentiator.h - reverse mode ---------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_DIFFERENTIATOR_H
#define MESHWRIGHT_PASSES_DIFFERENTIATE_DIFFERENTIATOR_H

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace meshwright {

/// Writes the backward pass of one loss, and replaces its gradients.
///
/// 1. `findActive`: the values that depend on a parameter with a gradient.
/// 2. `sweep`: from the loss backward, each op that has a cotangent adds to the cotangents of
///    its active operands.
/// 3. `replace`: each gradient by the cotangent of its parameter.
///
/// Linear in the function.
class Differentiator : public mlir::OpBuilder::Listener {
public:
  /// The gradients are all of one loss. The first one in the function comes first.
  Differentiator(mlir::func::FuncOp func, llvm::ArrayRef<nn::GradientOp> gradients);
  mlir::LogicalResult run();

private:
  void findActive();
  mlir::LogicalResult sweep();
  mlir::LogicalResult visit(mlir::Operation *op);
  void replace();
  void eraseUnused();
  void log();

  bool isFloat(mlir::Value value) const;
  /// The element type of the cotangent of a value.
  mlir::Type getCotangentType(mlir::Value value);
  /// The sum of the terms of a value's cotangent; null if there are none.
  mlir::Value getCotangent(mlir::Value value, mlir::Location loc);
  mlir::Value joinSlices(nn::Writer &w, llvm::ArrayRef<mlir::Value> terms);
  mlir::Value annotate(mlir::Value cotangent, mlir::Value value);
  void notifyOperationInserted(mlir::Operation *op, mlir::OpBuilder::InsertPoint) override;

  mlir::func::FuncOp func;
  llvm::SmallVector<nn::GradientOp> gradients;
  mlir::Value loss;
  mlir::OpBuilder builder;
  /// The arguments of the requested parameters, by name.
  llvm::MapVector<mlir::StringAttr, llvm::SmallVector<mlir::BlockArgument, 1>> arguments;
  ProgramSet<mlir::Value> active;
  /// Values that depend on inputs or state. All others depend on parameters alone.
  ProgramSet<mlir::Value> dependsOnData;
  ProgramMap<mlir::Value, llvm::SmallVector<mlir::Value, 2>> terms;
  ProgramSet<mlir::Operation *> written;
  /// The stage of the op that is visited.
  mlir::Attribute stage;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_DIFFERENTIATE_DIFFERENTIATOR_H

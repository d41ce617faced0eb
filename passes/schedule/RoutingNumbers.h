//===- RoutingNumbers.h - the numbers of routings in reports ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A run reports the rows of a layer of experts by the number of its routing.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_ROUTINGNUMBERS_H
#define MESHWRIGHT_PASSES_SCHEDULE_ROUTINGNUMBERS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"

namespace meshwright {

/// Numbers the routings of a function in the order of `nn::getRoutings`. Choices of chunks of the tokens
/// (`split-routings`) have numbers that differ by the number of all routings.
class RoutingNumbers {
public:
  explicit RoutingNumbers(mlir::func::FuncOp func);

  /// The number of the routing by choices, or a form of them.
  int64_t get(mlir::Value choices);
  /// Numbers the limits of the function, which count the choices that they drop.
  void numberLimits();

private:
  mlir::func::FuncOp func;
  /// By the root of the choices (`nn::getChoicesRoot`).
  ProgramMap<mlir::Value, int64_t> numbers;
  /// By the root, where the chunks start.
  ProgramMap<mlir::Value, llvm::SmallVector<llvm::SmallVector<int64_t>>> chunks;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_ROUTINGNUMBERS_H

//===- Choices.h - the choices of experts -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_CHOICES_H
#define MESHWRIGHT_DIALECTS_NN_CHOICES_H

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/STLFunctionalExtras.h"

namespace meshwright::nn {

/// The integers that an op casts to these, if both types have room for the numbers of experts. Null for
/// other values.
mlir::Value getCastChoices(mlir::Value choices);

/// The value of which an op joins all pieces again, in their order. Null for other ops. `getSource` gives the
/// value of which a piece is a form.
mlir::Value getJoined(mlir::Operation *op, llvm::function_ref<mlir::Value(mlir::Value)> getSource);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_CHOICES_H

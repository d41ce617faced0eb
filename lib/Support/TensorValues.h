//===- TensorValues.h - types and shapes of values --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Short names for the parts of a value's type.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_TENSORVALUES_H
#define MESHWRIGHT_LIB_SUPPORT_TENSORVALUES_H

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/TypeUtilities.h"
#include "mlir/IR/Value.h"

namespace meshwright {

/// The type of a value that is a tensor.
inline mlir::RankedTensorType typeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
/// The shape of a value that is a tensor.
inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) { return typeOf(value).getShape(); }
/// The element type of a tensor or a vector; the type itself of another value.
inline mlir::Type elementOf(mlir::Value value) {
  return mlir::getElementTypeOrSelf(value.getType());
}

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_TENSORVALUES_H

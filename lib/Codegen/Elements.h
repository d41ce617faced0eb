//===- Elements.h - arithmetic of elementwise ops ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ELEMENTS_H
#define MESHWRIGHT_LIB_CODEGEN_ELEMENTS_H

#include "meshwright/lib/Codegen/OpClasses.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower {

using Builder = mlir::ImplicitLocOpBuilder;

inline mlir::Value emitIndex(Builder &builder, int64_t value) {
  return mlir::arith::ConstantIndexOp::create(builder, value);
}

/// The type of an element in a buffer: i8 for i1, and for codes (`isCode`).
mlir::Type getStorageType(mlir::Type type);

/// How exact functions have to be for a result of this type: to the last place, or
/// to 2e-4 (`afn`), which bf16 hardly shows.
mlir::arith::FastMathFlags getAccuracy(mlir::Type type);
/// Where a vector of f32 has the elements of one of bf16: at the same places, or
/// first those of even places, then those of odd ones, which are widened by a shift
/// and a mask, and narrowed all at once.
enum class LaneOrder { Same, EvenFirst };
/// A vector that has elements of even places first, with all at their places.
mlir::Value emitInterleaved(mlir::ImplicitLocOpBuilder &builder, mlir::Value vector);
/// Emits the arithmetic of an elementwise op. `operands` and the result are
/// elements as values hold them (i1, bf16, ...), all alone or all in vectors. Values hold codes as
/// buffers do.
mlir::Value emitElement(mlir::ImplicitLocOpBuilder &builder, mlir::Operation *op,
                        mlir::ValueRange operands, LaneOrder order = LaneOrder::Same);
/// Element conversions, between any two types of `nn`.
mlir::Value emitCast(mlir::ImplicitLocOpBuilder &builder, mlir::Value value, mlir::Type type,
                     LaneOrder order = LaneOrder::Same);
/// A constant of an integer or float type, or of a vector of them.
mlir::Value emitConstant(mlir::ImplicitLocOpBuilder &builder, mlir::Type type, double value);
/// An element of a constant, as values hold it.
mlir::Value emitConstant(mlir::ImplicitLocOpBuilder &builder, mlir::TypedAttr element);
/// Loads of and stores to storage: i8 <-> i1.
mlir::Value fromStorage(mlir::ImplicitLocOpBuilder &builder, mlir::Value value, mlir::Type type);
mlir::Value toStorage(mlir::ImplicitLocOpBuilder &builder, mlir::Value value);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ELEMENTS_H

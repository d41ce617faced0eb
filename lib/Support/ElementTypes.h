//===- ElementTypes.h - the element types of tensors ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The table of meshwright-c/ElementTypes.def in MLIR's terms. A code is the number of a type, as
// descriptors, bundles and the facade have it (MW_F32, ...).
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_ELEMENTTYPES_H
#define MESHWRIGHT_LIB_SUPPORT_ELEMENTTYPES_H

#include "meshwright-c/Runtime.h"

#include "mlir/IR/BuiltinTypes.h"

namespace meshwright {

/// The code of an element type; -1 if the table lacks the type.
int64_t getTypeCode(mlir::Type type);
/// Returns true for a code: an element that programs store and move, and that nothing computes on.
bool isCode(mlir::Type type);
/// Returns true for numbers, which have sums and maxima. Truth values and codes have none.
bool hasSums(mlir::Type type);
/// The type in which arithmetic on elements is done and their sums are taken: f32 for bf16 and f16,
/// else their own.
mlir::Type getComputeType(mlir::Type type);
/// The elements that share a byte: 2 for elements of four bits, else 1.
int64_t getElementsPerByte(mlir::Type type);
/// The bytes of `count` elements in memory, where a truth value takes one.
int64_t getBytesOf(mlir::Type element, int64_t count);
/// The tensor of i8 with the bytes of one whose elements share them, or else the type itself: an
/// encoding says by itself where elements are. Null for one whose last dimension does not fill whole bytes.
mlir::RankedTensorType getPackedType(mlir::RankedTensorType type);
/// All names, for messages: "f32, bf16, ... or i1".
std::string listElementTypes();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_ELEMENTTYPES_H

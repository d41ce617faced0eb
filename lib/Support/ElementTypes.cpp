//===- ElementTypes.cpp - the element types of tensors --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ElementTypes.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MathExtras.h"

namespace meshwright {

int64_t getTypeCode(mlir::Type type) {
  mlir::MLIRContext *context = type.getContext();
#define MW_ELEMENT_TYPE(ID, NAME, BITS, USE, MLIR, ...)                                            \
  if (type == MLIR)                                                                                \
    return MW_##ID;
#include "meshwright-c/ElementTypes.def"
  return -1;
}

bool isCode(mlir::Type type) {
  mlir::MLIRContext *context = type.getContext();
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, NAME, BITS, USE, MLIR, ...)                                               \
  if (type == MLIR)                                                                                \
    return true;
#include "meshwright-c/ElementTypes.def"
  return false;
}

bool hasSums(mlir::Type type) { return !type.isInteger(1) && !isCode(type); }

mlir::Type getComputeType(mlir::Type type) {
  return type.isBF16() || type.isF16() ? mlir::Float32Type::get(type.getContext()) : type;
}

int64_t getElementsPerByte(mlir::Type type) {
  return type.getIntOrFloatBitWidth() == 4 && isCode(type) ? 2 : 1;
}

int64_t getBytesOf(mlir::Type element, int64_t count) {
  int64_t shared = getElementsPerByte(element);
  if (shared > 1)
    return llvm::divideCeil(count, shared);
  return count * llvm::divideCeil(element.getIntOrFloatBitWidth(), 8);
}

mlir::RankedTensorType getPackedType(mlir::RankedTensorType type) {
  int64_t shared = getElementsPerByte(type.getElementType());
  if (shared == 1 || type.getEncoding())
    return type;
  llvm::SmallVector<int64_t> shape(type.getShape());
  if (shape.empty() || shape.back() % shared != 0)
    return nullptr;
  shape.back() /= shared;
  return mlir::RankedTensorType::get(shape, mlir::IntegerType::get(type.getContext(), 8),
                                     type.getEncoding());
}

std::string listElementTypes() {
  static constexpr llvm::StringLiteral names[] = {
#define MW_ELEMENT_TYPE(ID, NAME, ...) NAME,
#include "meshwright-c/ElementTypes.def"
  };
  llvm::ArrayRef<llvm::StringLiteral> all(names);
  return llvm::join(all.drop_back(), ", ") + " or " + all.back().str();
}

} // namespace meshwright

//===- GemmPieces.cpp - pieces of product kernels -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/GemmPieces.h"

#include "meshwright/lib/Codegen/Cpu/Gemm.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace meshwright::lower {

using namespace gemm;
using gemm::Builder;

static Type withShapeOf(Type vector, Type element) {
  return cast<VectorType>(vector).clone(element);
}
Value gemm::widen(Builder &b, Value vector) {
  Type type = withShapeOf(vector.getType(), b.getF32Type());
  return type == vector.getType() ? vector : arith::ExtFOp::create(b, type, vector);
}
Value gemm::narrow(Builder &b, Value vector, Type element) {
  Type type = withShapeOf(vector.getType(), element);
  return type == vector.getType() ? vector : arith::TruncFOp::create(b, type, vector);
}

Value gemm::flatten(Builder &b, Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  if (type.getRank() == 1)
    return buffer;
  int64_t count = type.getNumElements();
  return memref::ReinterpretCastOp::create(b, MemRefType::get({count}, type.getElementType()),
                                           buffer, /*offset=*/0, ArrayRef<int64_t>{count},
                                           ArrayRef<int64_t>{1});
}

static Value getMask(Builder &b, int64_t count, int64_t lanes) {
  return vector::ConstantMaskOp::create(b, VectorType::get({lanes}, b.getI1Type()),
                                        ArrayRef<int64_t>{count});
}

/// Without `masksBf16`, LLVM would split masked vectors of bf16 by functions that no library has, so
/// this loads each element.
Value gemm::loadSome(Builder &b, Value buffer, Value at, int64_t count, int64_t lanes,
                      bool masksBf16) {
  auto type = VectorType::get({lanes}, cast<MemRefType>(buffer.getType()).getElementType());
  if (count == lanes)
    return widen(b, vector::LoadOp::create(b, type, buffer, at));
  if (type.getElementType().isF32() || masksBf16) {
    Value zero = arith::ConstantOp::create(b, b.getZeroAttr(type));
    return widen(b,
                 vector::MaskedLoadOp::create(b, type, buffer, at, getMask(b, count, lanes), zero));
  }
  Value wide = arith::ConstantOp::create(b, b.getZeroAttr(withShapeOf(type, b.getF32Type())));
  for (int64_t i = 0; i < count; ++i) {
    Value element = memref::LoadOp::create(b, buffer, add(b, at, i));
    element = arith::ExtFOp::create(b, b.getF32Type(), element);
    wide = vector::InsertOp::create(b, element, wide, i);
  }
  return wide;
}

void gemm::storeSome(Builder &b, Value wide, Value buffer, Value at, int64_t count,
                      bool masksBf16) {
  int64_t lanes = cast<VectorType>(wide.getType()).getNumElements();
  Type element = cast<MemRefType>(buffer.getType()).getElementType();
  if (count == lanes) {
    vector::StoreOp::create(b, narrow(b, wide, element), buffer, at);
    return;
  }
  if (element.isF32() || masksBf16) {
    vector::MaskedStoreOp::create(b, buffer, at, getMask(b, count, lanes),
                                  narrow(b, wide, element));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    Value value = vector::ExtractOp::create(b, wide, i);
    value = arith::TruncFOp::create(b, element, value);
    memref::StoreOp::create(b, value, buffer, add(b, at, i));
  }
}

Value GemmPoint::load(Builder &b, Value buffer, int64_t columns, bool byRow) const {
  Value at = byRow ? add(b, mul(b, row, columns), column) : column;
  return loadSome(b, flatten(b, buffer), at, count, lanes, masksBf16);
}

void GemmPoint::store(Builder &b, Value vector, Value buffer, int64_t columns) const {
  Value at = add(b, mul(b, row, columns), column);
  storeSome(b, vector, flatten(b, buffer), at, count, masksBf16);
}

} // namespace meshwright::lower

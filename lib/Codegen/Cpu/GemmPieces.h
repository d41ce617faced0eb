//===- GemmPieces.h - pieces of product kernels -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_GEMMPIECES_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_GEMMPIECES_H

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower::gemm {

using Builder = mlir::ImplicitLocOpBuilder;

inline mlir::Value index(Builder &b, int64_t value) {
  return mlir::arith::ConstantIndexOp::create(b, value);
}
inline mlir::Value add(Builder &b, mlir::Value x, mlir::Value y) {
  return mlir::arith::AddIOp::create(b, x, y);
}
inline mlir::Value add(Builder &b, mlir::Value x, int64_t y) {
  return y ? add(b, x, index(b, y)) : x;
}
inline mlir::Value sub(Builder &b, mlir::Value x, mlir::Value y) {
  return mlir::arith::SubIOp::create(b, x, y);
}
inline mlir::Value mul(Builder &b, mlir::Value x, int64_t y) {
  return y == 1 ? x : mlir::arith::MulIOp::create(b, x, index(b, y));
}
inline mlir::Value min(Builder &b, mlir::Value x, mlir::Value y) {
  return mlir::arith::MinUIOp::create(b, x, y);
}
inline mlir::Value min(Builder &b, mlir::Value x, int64_t y) { return min(b, x, index(b, y)); }
inline mlir::Value less(Builder &b, mlir::Value x, mlir::Value y) {
  return mlir::arith::CmpIOp::create(b, mlir::arith::CmpIPredicate::ult, x, y);
}
inline mlir::Value less(Builder &b, mlir::Value x, int64_t y) { return less(b, x, index(b, y)); }
inline mlir::Value equal(Builder &b, mlir::Value x, int64_t y) {
  return mlir::arith::CmpIOp::create(b, mlir::arith::CmpIPredicate::eq, x, index(b, y));
}

/// Vectors in f32, or narrowed to an element type.
mlir::Value widen(Builder &b, mlir::Value vector);
mlir::Value narrow(Builder &b, mlir::Value vector, mlir::Type element);

/// A dense buffer in one dimension.
mlir::Value flatten(Builder &b, mlir::Value buffer);

/// Loads `count` elements of a flat buffer as f32, in a vector of `lanes` with zeros behind them.
mlir::Value loadSome(Builder &b, mlir::Value buffer, mlir::Value at, int64_t count, int64_t lanes,
                     bool masksBf16);
/// Stores the first `count` elements of a vector of f32.
void storeSome(Builder &b, mlir::Value wide, mlir::Value buffer, mlir::Value at, int64_t count,
               bool masksBf16);

} // namespace meshwright::lower::gemm

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_GEMMPIECES_H

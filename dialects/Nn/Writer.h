//===- Writer.h - ops whose types follow from their operands ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_WRITER_H
#define MESHWRIGHT_DIALECTS_NN_WRITER_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/Builders.h"

namespace meshwright::nn {

/// Writes ops whose result types follow from their operands. An op that would not change its
/// operand (a cast to its own type, a reshape to its own shape) is not written.
class Writer {
public:
  Writer(mlir::OpBuilder &builder, mlir::Location loc) : builder(builder), loc(loc) {}

  mlir::OpBuilder &getBuilder() { return builder; }
  mlir::Location getLoc() const { return loc; }

  //===--------------------------------------------------------------------===//
  // Elementwise
  //===--------------------------------------------------------------------===//

  template <typename Op> mlir::Value unary(mlir::Value x) {
    return Op::create(builder, loc, x.getType(), x);
  }
  /// The operands broadcast. The second one has the element type of the first one.
  template <typename Op> mlir::Value binary(mlir::Value x, mlir::Value y) {
    return Op::create(builder, loc, join({x, y}, elementOf(x)), x, y);
  }
  mlir::Value add(mlir::Value x, mlir::Value y) { return binary<AddOp>(x, y); }
  mlir::Value sub(mlir::Value x, mlir::Value y) { return binary<SubOp>(x, y); }
  mlir::Value mul(mlir::Value x, mlir::Value y) { return binary<MulOp>(x, y); }
  mlir::Value div(mlir::Value x, mlir::Value y) { return binary<DivOp>(x, y); }
  mlir::Value neg(mlir::Value x) { return unary<NegOp>(x); }
  /// x times, or plus, a number.
  mlir::Value scale(mlir::Value x, double factor) { return mul(x, number(factor, elementOf(x))); }
  mlir::Value addNumber(mlir::Value x, double term) { return add(x, number(term, elementOf(x))); }
  mlir::Value compare(CompareKind kind, mlir::Value x, mlir::Value y) {
    return CompareOp::create(builder, loc, join({x, y}, builder.getI1Type()), kind, x, y);
  }
  mlir::Value compare(CompareKind kind, mlir::Value x, double number) {
    return compare(kind, x, this->number(number, elementOf(x)));
  }
  mlir::Value select(mlir::Value condition, mlir::Value x, mlir::Value y) {
    return SelectOp::create(builder, loc, join({condition, x, y}, elementOf(x)), condition, x, y);
  }
  /// x where the condition holds, else zero.
  mlir::Value keepWhere(mlir::Value condition, mlir::Value x) {
    return select(condition, x, number(0, elementOf(x)));
  }
  mlir::Value cast(mlir::Value x, mlir::Type element);

  //===--------------------------------------------------------------------===//
  // Constants and shapes
  //===--------------------------------------------------------------------===//

  /// A scalar.
  mlir::Value number(double value, mlir::Type element) {
    return fill(value, mlir::RankedTensorType::get({}, element));
  }
  /// A tensor of equal elements.
  mlir::Value fill(double value, mlir::RankedTensorType type);
  mlir::Value iota(int64_t dim, mlir::RankedTensorType type) {
    return IotaOp::create(builder, loc, type, dim);
  }
  mlir::Value reshape(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value broadcast(mlir::Value x, llvm::ArrayRef<int64_t> shape);
  mlir::Value transpose(mlir::Value x, llvm::ArrayRef<int64_t> permutation);
  /// The elements start .. limit of a dimension.
  mlir::Value slice(mlir::Value x, int64_t dim, int64_t start, int64_t limit);
  mlir::Value concat(llvm::ArrayRef<mlir::Value> values, int64_t dim);
  /// Each element of a dimension so many times, and of these the first `count` ones.
  mlir::Value repeat(mlir::Value x, int64_t dim, int64_t times, int64_t count);

  //===--------------------------------------------------------------------===//
  // Reductions and products
  //===--------------------------------------------------------------------===//

  /// Reduces `dims`, which stay with size 1 if `keep` is set.
  mlir::Value reduce(ReduceKind kind, mlir::Value x, llvm::ArrayRef<int64_t> dims,
                     bool keep = true);
  /// The sums of x over the dimensions along which a value of the type `like` stretches to x.
  mlir::Value sumTo(mlir::Value x, mlir::RankedTensorType like);
  mlir::Value matmul(mlir::Value x, mlir::Value y, bool transposeX = false,
                     bool transposeY = false);
  /// A linear layer without a bias.
  mlir::Value linear(mlir::Value x, mlir::Value weight, bool inOut);
  mlir::Value weightGrad(mlir::Value x, mlir::Value y);

private:
  mlir::RankedTensorType join(llvm::ArrayRef<mlir::Value> values, mlir::Type element);

  mlir::OpBuilder &builder;
  mlir::Location loc;
};

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_WRITER_H

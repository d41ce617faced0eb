//===- Checks.cpp - checks that verifiers share ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

std::string nn::spell(Shape shape) {
  std::string text = "[";
  llvm::raw_string_ostream stream(text);
  llvm::interleaveComma(shape, stream);
  stream << "]";
  return text;
}

LogicalResult nn::verifyShape(Operation *op, StringRef subject, Value value, Shape expected) {
  if (shapeOf(value) == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of shape " << spell(expected) << ", got "
                           << spell(shapeOf(value));
}

LogicalResult nn::verifyRank(Operation *op, StringRef subject, Value value, int64_t expected) {
  int64_t rank = typeOf(value).getRank();
  if (rank == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of rank " << expected << ", got rank "
                           << rank;
}

LogicalResult nn::verifyRankAtLeast(Operation *op, StringRef subject, Value value,
                                    int64_t least) {
  int64_t rank = typeOf(value).getRank();
  if (rank >= least)
    return success();
  return op->emitOpError() << "expected " << subject << " of rank " << least
                           << " or more, got rank " << rank;
}

LogicalResult nn::verifyElementType(Operation *op, StringRef subject, Value value,
                                    StringRef referenceName, Value reference) {
  Type got = typeOf(value).getElementType(), expected = typeOf(reference).getElementType();
  if (got == expected)
    return success();
  return op->emitOpError() << "expected " << subject << " of element type " << expected << " as "
                           << referenceName << ", got " << got;
}

LogicalResult nn::verifyDim(Operation *op, int64_t dim, StringRef subject, Value value) {
  int64_t rank = typeOf(value).getRank();
  if (dim >= 0 && dim < rank)
    return success();
  return op->emitOpError() << "expected dim to be a dimension of " << subject << " of rank " << rank
                           << ", got " << dim;
}

LogicalResult nn::verifyEpsilon(Operation *op, const APFloat &eps) {
  double value = eps.convertToDouble();
  if (std::isfinite(value) && value >= 0)
    return success();
  return op->emitOpError() << "expected eps to be finite and not negative, got " << value;
}

std::optional<SmallVector<int64_t>> nn::broadcastShapes(ArrayRef<ArrayRef<int64_t>> shapes) {
  size_t rank = 0;
  for (Shape shape : shapes)
    rank = std::max(rank, shape.size());
  SmallVector<int64_t> result(rank, 1);
  for (Shape shape : shapes) {
    auto dims = MutableArrayRef(result).take_back(shape.size());
    for (auto [size, got] : llvm::zip_equal(dims, shape)) {
      if (size != 1 && got != 1 && size != got)
        return std::nullopt;
      if (got != 1)
        size = got;
    }
  }
  return result;
}

LogicalResult nn::verifyProbability(Operation *op, const APFloat &probability) {
  double value = probability.convertToDouble();
  if (!(value >= 0 && value < 1))
    return op->emitOpError() << "expected a probability from 0 on and below 1, got " << value;
  return success();
}

LogicalResult nn::verifyBroadcast(Operation *op, ValueRange operands, Value result) {
  SmallVector<Shape> shapes = llvm::map_to_vector(operands, shapeOf);
  std::optional<SmallVector<int64_t>> shape = broadcastShapes(shapes);
  if (!shape) {
    InFlightDiagnostic diagnostic =
        op->emitOpError("expected operands whose shapes broadcast, got ");
    llvm::interleaveComma(shapes, diagnostic, [&](Shape shape) { diagnostic << spell(shape); });
    return diagnostic;
  }
  return verifyShape(op, "result", result, *shape);
}

LogicalResult nn::verifyStretchesTo(Operation *op, StringRef subject, Value value, Shape target) {
  Shape shapes[] = {shapeOf(value), target};
  std::optional<SmallVector<int64_t>> shape = broadcastShapes(shapes);
  if (shape && Shape(*shape) == target)
    return success();
  return op->emitOpError() << "expected " << subject << " that broadcasts to " << spell(target)
                           << ", got " << spell(shapes[0]);
}

LogicalResult nn::verifyBinary(Operation *op) {
  Value lhs = op->getOperand(0), rhs = op->getOperand(1), result = op->getResult(0);
  if (failed(verifyElementType(op, "rhs", rhs, "lhs", lhs)) ||
      failed(verifyElementType(op, "result", result, "lhs", lhs)))
    return failure();
  return verifyBroadcast(op, {lhs, rhs}, result);
}

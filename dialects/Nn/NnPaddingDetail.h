//===- NnPaddingDetail.h - parts of the padding rules of ops ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to dialects/Nn.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNPADDINGDETAIL_H
#define MESHWRIGHT_DIALECTS_NN_NNPADDINGDETAIL_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <cmath>

namespace meshwright::padding {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double getMagnitude(const Padding &content) {
  return std::max(std::fabs(content.lower), std::fabs(content.upper));
}

/// -magnitude .. magnitude.
inline Padding around(double magnitude, mlir::Type type) { return round({-magnitude, magnitude}, type); }

/// The content of all elements of the first operand that one of the result depends on.
inline Padding ofRow(const Operands &in, Padding content) {
  in.visitReadCorners(
      [&](llvm::function_ref<Padding(unsigned)> corner) { content = meet(content, corner(0)); });
  return content;
}

/// A sum of products of the first two operands, tail and corners.
inline Padding sumProducts(mlir::Operation *op, const Operands &in) {
  mlir::Type type = elementOf(op->getResult(0)), wide = getComputeType(type);
  Padding product = multiply(in.getConditional(0), in.getConditional(1), wide);
  in.visitReadCorners([&](llvm::function_ref<Padding(unsigned)> corner) {
    product = meet(product, multiply(corner(0), corner(1), wide));
  });
  return round(sum(product, in.getReadCount(), wide), type);
}

} // namespace meshwright::padding

#endif // MESHWRIGHT_DIALECTS_NN_NNPADDINGDETAIL_H

//===- Checks.h - checks that verifiers share -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to the dialect. Each check emits an error that names `subject`, an operand or
// the result, and states the expected value and the given one.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_CHECKS_H
#define MESHWRIGHT_DIALECTS_NN_CHECKS_H

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <string>

namespace meshwright::nn {

using Shape = llvm::ArrayRef<int64_t>;

/// A shape as messages spell it: [2, 7, 16].
std::string spell(Shape shape);

mlir::LogicalResult verifyShape(mlir::Operation *op, llvm::StringRef subject, mlir::Value value,
                                Shape expected);
mlir::LogicalResult verifyRank(mlir::Operation *op, llvm::StringRef subject, mlir::Value value,
                               int64_t expected);
mlir::LogicalResult verifyRankAtLeast(mlir::Operation *op, llvm::StringRef subject,
                                      mlir::Value value, int64_t least);
/// The element type of `value` equals that of `reference`.
mlir::LogicalResult verifyElementType(mlir::Operation *op, llvm::StringRef subject,
                                      mlir::Value value, llvm::StringRef referenceName,
                                      mlir::Value reference);
/// `dim` is a dimension of `value`.
mlir::LogicalResult verifyDim(mlir::Operation *op, int64_t dim, llvm::StringRef subject,
                              mlir::Value value);
/// The epsilon of a norm is finite and not negative.
mlir::LogicalResult verifyEpsilon(mlir::Operation *op, const llvm::APFloat &eps);
/// A probability of dropping is from 0 on and below 1.
mlir::LogicalResult verifyProbability(mlir::Operation *op, const llvm::APFloat &probability);
/// `operands` broadcast by NumPy's rules to the shape of `result`.
mlir::LogicalResult verifyBroadcast(mlir::Operation *op, mlir::ValueRange operands,
                                    mlir::Value result);
/// `value` broadcasts by NumPy's rules to the shape `target`.
mlir::LogicalResult verifyStretchesTo(mlir::Operation *op, llvm::StringRef subject,
                                      mlir::Value value, Shape target);
/// The verifier of `Nn_Binary`. Checks that
///  - both operands and the result have one element type;
///  - the operands broadcast to the shape of the result.
mlir::LogicalResult verifyBinary(mlir::Operation *op);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_CHECKS_H

//===- Serving.h - the sizes of a module that serves ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_SERVING_H
#define MESHWRIGHT_DIALECTS_NN_SERVING_H

#include "meshwright/Serving.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

#include <optional>
#include <string>

namespace meshwright::nn {

/// The name of the attribute of a module whose entries are steps of serving.
inline constexpr llvm::StringLiteral kServingAttr = "nn.serving";

/// Reads the attribute `nn.serving` of a module; none if it does not serve.
std::optional<ServingSizes> getServingSizes(mlir::ModuleOp module);
void setServingSizes(mlir::ModuleOp module, const ServingSizes &sizes);

/// The name of the attribute of a module with the hashes of its model.
inline constexpr llvm::StringLiteral kModelAttr = "nn.model";

/// The model that a module serves. Each is a hash in hexadecimal digits.
struct ModelHash {
  /// Of names and types of parameters.
  std::string parameters;
  /// Of operations and their types, which depend on the length of a request.
  std::string operations;
};

/// Reads the attribute `nn.model` of a module; none if it lacks it.
std::optional<ModelHash> getModelHash(mlir::ModuleOp module);
void setModelHash(mlir::ModuleOp module, const ModelHash &hash);

/// The names of the inputs of a step that others read: ids of tokens, their positions and their places in pages
/// [groups, tokens], and the numbers of true tokens [groups].
inline constexpr llvm::StringLiteral kTokensInput = "tokens";
inline constexpr llvm::StringLiteral kPositionsInput = "positions";
inline constexpr llvm::StringLiteral kSlotsInput = "slots";
inline constexpr llvm::StringLiteral kCountsInput = "counts";
/// On a step of serving: the most tokens of all groups together (i64). The step has the input `counts`.
inline constexpr llvm::StringLiteral kTokenSumAttr = "nn.token_sum";

/// The most tokens of all groups that a step states; none without a statement.
std::optional<int64_t> getTokenSum(mlir::func::FuncOp func);
/// The input of that name; null if there is none.
mlir::BlockArgument findInput(mlir::func::FuncOp func, llvm::StringRef name);
/// Checks that `nn.token_sum` is on a function, and a positive i64.
mlir::LogicalResult verifyTokenSumAttr(mlir::Operation *op, mlir::Attribute attribute);
/// Checks that `nn.model` is on a module, and has two strings.
mlir::LogicalResult verifyModelAttr(mlir::Operation *op, mlir::Attribute attribute);
/// Checks that the attribute is on a module, and states positive sizes.
mlir::LogicalResult verifyServingAttr(mlir::Operation *op, mlir::Attribute attribute);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_SERVING_H

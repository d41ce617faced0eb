//===- Serving.h - the sizes of a module that serves ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_SERVING_H
#define MESHWRIGHT_DIALECTS_NN_SERVING_H

#include "meshwright/Serving.h"

#include "mlir/IR/BuiltinOps.h"

#include <optional>

namespace meshwright::nn {

/// The name of the attribute of a module whose entries are steps of serving.
inline constexpr llvm::StringLiteral kServingAttr = "nn.serving";

/// Reads the attribute `nn.serving` of a module; none if it does not serve.
std::optional<ServingSizes> getServingSizes(mlir::ModuleOp module);
void setServingSizes(mlir::ModuleOp module, const ServingSizes &sizes);
/// Checks that the attribute is on a module, and states positive sizes.
mlir::LogicalResult verifyServingAttr(mlir::Operation *op, mlir::Attribute attribute);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_SERVING_H

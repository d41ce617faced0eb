//===- OpClasses.cpp - ops as kernels see them ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/OpClasses.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

using namespace mlir;

namespace meshwright::lower {

bool isFree(Operation *op) {
  auto constant = dyn_cast<nn::ConstantOp>(op);
  if (!constant)
    return isa<nn::IotaOp>(op);
  auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
  return elements && elements.isSplat();
}

bool isMovement(Operation *op) {
  return op->hasTrait<dist::Reindexes>() && !op->hasTrait<dist::View>();
}

bool isElementwise(Operation *op) {
  return op->hasTrait<dist::Elementwise>() || isMovement(op) || isFree(op);
}

bool isCheap(Operation *op) {
  return op->hasTrait<dist::Cheap>() || isMovement(op) || rt::isView(op);
}

std::optional<int64_t> getMostEvaluations(Operation *op) {
  if (isFree(op) || isCheap(op))
    return std::nullopt;
  // A kernel that reads a norm or a rotation twice still saves a pass over memory.
  return op->hasTrait<dist::RowNorm>() || isa<nn::RotaryOp>(op) ? 2 : 1;
}

ElementCost getElementCost(Operation *op) {
  // Exponentials are computed with the statistics of the row.
  if (isa<nn::SoftmaxOp>(op))
    return getElementTypeOrSelf(op->getResult(0).getType()).isF64() ? ElementCost::OneByOne
                                                                   : ElementCost::Many;
  if (!op->hasTrait<dist::Elementwise>() || op->hasTrait<dist::Cheap>())
    return ElementCost::Few;
  // Calls of a mathematical library, and integer division.
  Type type = getElementTypeOrSelf(op->getResult(0).getType());
  if (isa<nn::SinOp, nn::CosOp, nn::RemOp, nn::PowOp>(op) ||
      (isa<nn::DivOp>(op) && isa<IntegerType>(type)))
    return ElementCost::OneByOne;
  bool hasInstruction = isa<nn::SqrtOp, nn::RsqrtOp, nn::ReciprocalOp>(op);
  return type.isF64() && !hasInstruction ? ElementCost::OneByOne : ElementCost::Many;
}

} // namespace meshwright::lower

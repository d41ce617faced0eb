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

} // namespace meshwright::lower

//===- OpClasses.cpp - ops as kernels see them ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/OpClasses.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"

using namespace mlir;

namespace meshwright::lower {

static bool isSplat(Operation *op) {
  auto constant = dyn_cast<nn::ConstantOp>(op);
  auto elements = constant ? dyn_cast<DenseElementsAttr>(constant.getValue()) : nullptr;
  return elements && elements.isSplat();
}

/// Returns true for an op that may be part of a mask.
static bool makesMask(Operation *op) {
  return op && (isa<dist::PositionsOp>(op) || op->hasTrait<dist::View>() || isSplat(op) ||
                (op->hasTrait<dist::Elementwise>() && op->hasTrait<dist::Cheap>()));
}

bool isPaddingMask(Operation *op) {
  if (auto positions = dyn_cast<dist::PositionsOp>(op)) {
    dist::MeshAttr mesh = dist::getSpmdMesh(op);
    return mesh && dist::getFactor(positions, mesh).isPadded();
  }
  // Most ops end here: a sum along the layers of a model has terms that are no masks.
  if (!makesMask(op) || isSplat(op) ||
      !llvm::all_of(op->getOperands(), [](Value v) { return makesMask(v.getDefiningOp()); }))
    return false;
  bool readsMask = false;
  for (Value operand : op->getOperands()) {
    Operation *producer = operand.getDefiningOp();
    if (!isSplat(producer) && !isPaddingMask(producer))
      return false;
    readsMask |= !isSplat(producer);
  }
  return readsMask;
}

bool isFree(Operation *op) { return isSplat(op) || isa<nn::IotaOp>(op) || isPaddingMask(op); }

bool isMovement(Operation *op) {
  return op->hasTrait<dist::Reindexes>() && !op->hasTrait<dist::View>();
}

bool isElementwise(Operation *op) {
  return op->hasTrait<dist::Elementwise>() || isMovement(op) || isFree(op);
}

bool isCheap(Operation *op) {
  return op->hasTrait<dist::Cheap>() || isMovement(op) ||
         (rt::isView(op) && !isa<dist::AfterOp>(op));
}

} // namespace meshwright::lower

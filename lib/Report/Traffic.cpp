//===- Traffic.cpp - bytes a collective sends -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Report/Traffic.h"

#include "meshwright/dialects/Dist/Layout.h"

#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

int64_t meshwright::getBytes(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape() || !tensor.getElementType().isIntOrFloat())
    return 0;
  return tensor.getNumElements() *
         llvm::divideCeil(tensor.getElementType().getIntOrFloatBitWidth(), 8);
}

static int64_t getBytes(TypeRange types) {
  int64_t bytes = 0;
  for (Type type : types)
    bytes += meshwright::getBytes(type);
  return bytes;
}

std::optional<int64_t> meshwright::getSentBytes(Operation *op, MeshAttr mesh) {
  // (k - 1)/k of the larger side, rounded up: a ring.
  auto ring = [&](ArrayAttr axes, int64_t bytes) -> int64_t {
    int64_t k = getNumShards(getAxes(axes, mesh));
    return llvm::divideCeil((k - 1) * bytes, k);
  };
  return llvm::TypeSwitch<Operation *, std::optional<int64_t>>(op)
      .Case([&](AllReduceOp op) {
        return 2 * ring(op.getAxes(), ::getBytes(op.getInputs().getTypes()));
      })
      .Case([&](ReduceScatterOp op) {
        return ring(op.getAxes(), ::getBytes(op.getInputs().getTypes()));
      })
      .Case([&](AllGatherOp op) {
        return ring(op.getAxes(), ::getBytes(op.getOutputs().getTypes()));
      })
      .Case(
          [&](AllToAllOp op) { return ring(op.getAxes(), ::getBytes(op.getInputs().getTypes())); })
      .Case([&](PermuteOp op) -> int64_t {
        // Ranks that keep their own value send nothing.
        bool anySends = false;
        if (std::optional<int64_t> shift = op.getShift())
          anySends = *shift % getNumShards(getAxes(op.getAxes(), mesh)) != 0;
        if (std::optional<ArrayRef<int64_t>> pairs = op.getPairs())
          for (size_t i = 0; i + 1 < pairs->size(); i += 2)
            anySends |= (*pairs)[i] != (*pairs)[i + 1];
        return anySends ? ::getBytes(op.getInputs().getTypes()) : 0;
      })
      .Case([&](RedistributeOp op) { return ::getBytes(op.getOutputs().getTypes()); })
      .Default([](Operation *) { return std::nullopt; });
}

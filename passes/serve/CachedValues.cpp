//===- CachedValues.cpp - which values of attention a cache holds ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/CachedValues.h"

#include "meshwright/lib/Support/TensorValues.h"

#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;

bool meshwright::readsValuesFromKeys(nn::AttentionOp op) {
  if (op.getValue() == op.getKey())
    return true;
  auto slice = op.getValue().getDefiningOp<nn::SliceOp>();
  if (!slice || slice.getInput() != op.getKey())
    return false;
  auto is = [](int64_t number) { return [=](int64_t other) { return other == number; }; };
  return llvm::all_of(slice.getStarts(), is(0)) && llvm::all_of(slice.getStrides(), is(1)) &&
         slice.getLimits().drop_back() == shapeOf(op.getKey()).drop_back();
}

int64_t meshwright::getCachedElements(nn::AttentionOp op, int64_t ranks) {
  ArrayRef<int64_t> keys = shapeOf(op.getKey());
  int64_t columns = keys[3] + (readsValuesFromKeys(op) ? 0 : shapeOf(op.getValue())[3]);
  return llvm::divideCeil(keys[1], ranks) * columns;
}

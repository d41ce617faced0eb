//===- Batch.cpp - the inputs whose rows are the batch --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Batch.h"

#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;

std::optional<bool> nn::getStatedBatch(FunctionOpInterface function, unsigned argument) {
  auto stated = function.getArgAttrOfType<BoolAttr>(argument, kBatchAttr);
  return stated ? std::optional(stated.getValue()) : std::nullopt;
}

void BatchRule::add(ArrayRef<int64_t> shape, std::optional<bool> stated) {
  if (stated == false || (size && (isStated || !stated)))
    return;
  size = shape.empty() ? 0 : shape.front();
  isStated = stated.has_value();
}

bool BatchRule::isBatch(ArrayRef<int64_t> shape, std::optional<bool> stated) const {
  if (shape.empty())
    return false;
  return stated ? *stated : shape.front() == getSize();
}

SmallVector<bool> nn::findBatchInputs(FunctionOpInterface function) {
  BatchRule rule;
  auto visit = [&](auto take) {
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (function.getArgAttr(i, NnDialect::kInputAttr))
        take(i, cast<RankedTensorType>(function.getArgumentTypes()[i]).getShape(),
             getStatedBatch(function, i));
  };
  visit([&](unsigned, ArrayRef<int64_t> shape, std::optional<bool> stated) {
    rule.add(shape, stated);
  });
  SmallVector<bool> found(function.getNumArguments(), false);
  visit([&](unsigned index, ArrayRef<int64_t> shape, std::optional<bool> stated) {
    found[index] = rule.isBatch(shape, stated);
  });
  return found;
}

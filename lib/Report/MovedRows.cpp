//===- MovedRows.cpp - rows of experts that move --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MovedRows.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/CostModel/CostModel.h"

using namespace mlir;
using namespace meshwright;

bool meshwright::movesRows(Operation *op) {
  auto collective = dyn_cast<dist::CollectiveOpInterface>(op);
  return collective && op->getNumOperands() > 0 && movesRows(collective, 0);
}

int64_t meshwright::getBytesAtCapacity(Operation *op) {
  int64_t bytes = 0;
  for (Type type : op->getOperandTypes())
    bytes += getTensorBytes(type);
  return bytes;
}

double meshwright::getLoadShare(Operation *op) {
  if (!movesRows(op))
    return 1;
  nn::DispatchOp dispatch = nn::getDispatch(op->getOperand(0));
  nn::LimitOp limit = dispatch ? nn::getLimit(dispatch.getIndices()) : nn::LimitOp();
  if (!limit)
    return 1;
  // The limit sees the choices of all tokens.
  double choices = limit.getResult().getType().getNumElements();
  double experts = nn::getTableRows(dispatch).value_or(dispatch.getType().getDimSize(0));
  return std::min(1.0, double(limit.getCapacity()) * experts / choices);
}

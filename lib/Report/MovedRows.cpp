//===- MovedRows.cpp - rows of experts that move --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MovedRows.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/CostModel/ProgramCost.h"

#include <cmath>

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
  double experts = nn::getTableRows(dispatch).value_or(dispatch.getType().getDimSize(0)) *
                   nn::getRouted(dispatch.getType()).getShared();
  double load = dist::getRowLoad(op);
  double share = std::min(1.0, double(limit.getCapacity()) * experts / choices / load);
  auto from = cast<RankedTensorType>(op->getOperand(0).getType());
  auto to = cast<RankedTensorType>(op->getResult(0).getType());
  RankedTensorType rows = from.getDimSize(0) > to.getDimSize(0) ? from : to;
  if (nn::getRouted(rows).getShared() == 1)
    return share;
  // A row that experts share is there for the first of its choices.
  int64_t groups = nn::getNumGroups(op->getOperand(0)).value_or(rows.getDimSize(0));
  double filled = double(nn::getExpectedElements(rows, groups)) / double(rows.getNumElements());
  return (1 - std::pow(1 - filled, share)) / filled;
}

int64_t meshwright::getExpectedRows(Operation *op, unsigned i, int64_t tokens) {
  double rows = double(getMovedElements(cast<dist::CollectiveOpInterface>(op), i)) * getLoadShare(op);
  for (int64_t size : cast<RankedTensorType>(op->getOperand(i).getType()).getShape().drop_front(1 + tokens))
    rows /= double(std::max<int64_t>(1, size));
  return int64_t(std::ceil(rows));
}

int64_t meshwright::getExpectedRows(RankedTensorType routing, IntegerAttr total, double load) {
  double rows = total ? nn::getExpectedElements(routing, total.getInt()) : dist::getExpectedElements(routing);
  return std::min(int64_t(std::ceil(rows * load)), dist::getStoredElements(routing));
}

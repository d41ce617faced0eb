//===- ProgramCost.cpp - what a program costs a rank ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/ProgramCost.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace meshwright;

static RankedTensorType getType(Value value) { return cast<RankedTensorType>(value.getType()); }

double meshwright::getProductFlops(Operation *op) {
  return op->hasTrait<dist::Product>() ? cast<dist::WorkOpInterface>(op).getFlops() : 0;
}

int64_t meshwright::getComputeTime(Operation *op, const CostModel &model) {
  int64_t bytes = 0;
  for (Value value : op->getOperands())
    bytes += getTensorBytes(value.getType());
  for (Value value : op->getResults())
    bytes += getTensorBytes(value.getType());
  int64_t time = model.getMemoryTime(bytes);
  if (double flops = getProductFlops(op))
    time = std::max(time, model.getComputeTime(flops, getType(op->getResult(0)).getElementType()));
  return time;
}

/// Returns true if the op reads and writes memory, because nothing is fused into it.
static bool standsAlone(Operation *op) {
  return op->hasTrait<OpTrait::IsTerminator>() || dist::communicates(op) ||
         op->hasTrait<dist::Product>() || isa<dist::MatrixOpInterface>(op);
}

Value meshwright::skipViews(Value value) {
  for (Operation *op = value.getDefiningOp(); op && op->hasTrait<dist::View>();
       op = value.getDefiningOp())
    value = op->getOperand(0);
  return value;
}

ProgramCost meshwright::getProgramCost(FunctionOpInterface function, const CostModel &model) {
  ProgramCost cost;
  llvm::DenseSet<Value> inMemory;
  Block &body = function.getFunctionBody().front();
  for (Value argument : body.getArguments())
    inMemory.insert(argument);
  for (Operation &op : body) {
    bool alone = standsAlone(&op);
    for (Value operand : op.getOperands())
      if (alone)
        inMemory.insert(skipViews(operand));
    if (alone)
      for (Value result : op.getResults())
        inMemory.insert(result);
  }
  for (Operation &op : body) {
    if (op.hasTrait<dist::View>() || op.hasTrait<OpTrait::IsTerminator>())
      continue;
    if (std::optional<Cost> collective = model.getCost(&op); collective && collective->launches) {
      cost.communication += collective->time;
      cost.bytes += collective->bytes;
      cost.launches += collective->launches;
      continue;
    }
    if (op.hasTrait<dist::Product>()) {
      cost.compute += model.getLaunchTime() + getComputeTime(&op, model);
      continue;
    }
    int64_t bytes = 0;
    bool isKernel = false;
    for (Value result : op.getResults())
      if (inMemory.contains(result)) {
        bytes += getTensorBytes(result.getType());
        isKernel = true;
      }
    if (isa<dist::MatrixOpInterface>(op)) {
      // Products are counted above. A lookup of rows reads as many bytes as it writes.
      bytes *= 2;
    } else {
      // Such an op reads only as many elements as its result has.
      bool isPart = op.hasTrait<dist::TakesPart>();
      for (Value operand : op.getOperands())
        if (Value source = skipViews(operand); inMemory.contains(source))
          bytes += getTensorBytes(isPart ? op.getResult(0).getType() : source.getType());
    }
    cost.compute += (isKernel ? model.getLaunchTime() : 0) + model.getMemoryTime(bytes);
  }
  return cost;
}

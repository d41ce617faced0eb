//===- ProgramCost.cpp - what a program costs a rank ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/ProgramCost.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;

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
    time = std::max(time, model.getComputeTime(flops, elementOf(op->getResult(0))));
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

llvm::DenseSet<Value> meshwright::getValuesInMemory(Block &block) {
  llvm::DenseSet<Value> inMemory(block.args_begin(), block.args_end());
  for (Operation &op : block) {
    if (!standsAlone(&op))
      continue;
    for (Value operand : op.getOperands())
      inMemory.insert(skipViews(operand));
    inMemory.insert(op.result_begin(), op.result_end());
  }
  return inMemory;
}

static bool writesMemory(Operation *op, const llvm::DenseSet<Value> &inMemory) {
  return llvm::any_of(op->getResults(), [&](Value result) { return inMemory.contains(result); });
}

int64_t meshwright::getFusedBytes(Operation *op, const llvm::DenseSet<Value> &inMemory) {
  int64_t bytes = 0;
  for (Value result : op->getResults())
    if (inMemory.contains(result))
      bytes += getTensorBytes(result.getType());
  // A lookup of rows reads as many bytes as it writes.
  if (isa<dist::MatrixOpInterface>(op))
    return 2 * bytes;
  // Such an op reads only as many elements as its result has.
  bool isPart = op->hasTrait<dist::TakesPart>();
  for (Value operand : op->getOperands())
    if (Value source = skipViews(operand); inMemory.contains(source))
      bytes += getTensorBytes(isPart ? op->getResult(0).getType() : source.getType());
  return bytes;
}

ProgramCost meshwright::getProgramCost(FunctionOpInterface function, const CostModel &model) {
  ProgramCost cost;
  Block &body = function.getFunctionBody().front();
  llvm::DenseSet<Value> inMemory = getValuesInMemory(body);
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
    cost.compute += (writesMemory(&op, inMemory) ? model.getLaunchTime() : 0) +
                    model.getMemoryTime(getFusedBytes(&op, inMemory));
  }
  return cost;
}

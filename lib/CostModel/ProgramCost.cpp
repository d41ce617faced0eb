//===- ProgramCost.cpp - what a program costs a rank ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/ProgramCost.h"

#include "meshwright/dialects/Dist/Forms.h"
#include "meshwright/dialects/Nn/MovedRows.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;

double meshwright::getProductFlops(Operation *op) {
  return op->hasTrait<dist::Product>() ? cast<dist::WorkOpInterface>(op).getFlops() : 0;
}

/// Returns true if the value is a weight in another form, or one itself.
static bool isWeight(Value value) {
  while (true) {
    value = rt::getOuterValue(value);
    if (auto argument = dyn_cast<BlockArgument>(value)) {
      auto function = dyn_cast_or_null<FunctionOpInterface>(argument.getOwner()->getParentOp());
      return function && !function.getArgAttr(argument.getArgNumber(), nn::NnDialect::kInputAttr);
    }
    Operation *op = value.getDefiningOp();
    if (isa<nn::ReadOp>(op))
      return true;
    // A weight may be gathered, or packed by a kernel of its own.
    bool keeps = op->hasTrait<dist::KeepsWeight>() || isa<rt::WaitOp, rt::StartOp>(op);
    if (auto kernel = dyn_cast<rt::KernelOp>(op))
      keeps = llvm::any_of(kernel.getOps(), [](Operation &inner) { return isa<rt::PrepareOp>(inner); });
    if (!keeps || op->getNumOperands() == 0)
      return false;
    value = op->getOperand(0);
  }
}

/// The share of pairs of a query and a key that a kernel visits. Positions in operands are not known
/// here, so all pairs count then.
static double getVisibleShare(nn::ScoresOpInterface op) {
  int64_t queries = cast<RankedTensorType>(op.getQuery().getType()).getDimSize(2);
  int64_t rows = cast<RankedTensorType>(op.getKey().getType()).getDimSize(2);
  int64_t keys = std::min<int64_t>(rows, op.getKvLength().value_or(rows));
  if (op.getQPositions() || queries <= 0 || keys <= 0)
    return 1;
  std::optional<uint64_t> left = op.getWindowLeft();
  std::optional<uint64_t> right = op.getCausal() ? std::optional<uint64_t>(0) : op.getWindowRight();
  double pairs = 0;
  for (int64_t i = 0; i < queries; ++i) {
    int64_t first = left ? std::max<int64_t>(0, i - int64_t(*left)) : 0;
    int64_t end = right ? std::min<int64_t>(keys, i + int64_t(*right) + 1) : keys;
    pairs += double(std::max<int64_t>(0, end - first));
  }
  return pairs / (double(queries) * double(rows));
}

/// Adds a product. Its rows follow from its operations and the elements of its operands: a product of
/// m x k and k x n elements has 2 m n k operations.
static void addProduct(Operation *op, double flops, KernelWork &work) {
  auto result = cast<RankedTensorType>(op->getResult(0).getType());
  work.flops.emplace_back(flops, result.getElementType());
  work.type = elementOf(op->getOperand(0));
  if (auto scores = dyn_cast<nn::ScoresOpInterface>(op)) {
    auto query = cast<RankedTensorType>(scores.getQuery().getType());
    work.kind = KernelWork::Attention;
    // The gradient has one result for each of query, key and value.
    work.isGradient = op->getNumResults() >= 3;
    work.visible = getVisibleShare(scores);
    work.rows = flops * work.visible / std::max<double>(1, double(query.getNumElements() / query.getShape().back()));
    return;
  }
  work.kind = KernelWork::Product;
  auto rowsOf = [&](Value value) {
    return flops / 2 / std::max<double>(1, double(cast<RankedTensorType>(value.getType()).getNumElements()));
  };
  if (isa<dist::MatrixOpInterface>(op)) {
    Value matrix = op->getOperand(cast<dist::MatrixOpInterface>(op).getMatrixOperand());
    work.hasWeight = isWeight(matrix);
    work.rows = rowsOf(matrix);
    if (work.hasWeight)
      work.weightBytes += getTensorBytes(matrix.getType());
    return;
  }
  work.rows = std::min({rowsOf(op->getOperand(0)), rowsOf(op->getOperand(1)), rowsOf(op->getResult(0))});
}

void meshwright::addWork(Operation *op, KernelWork &work) {
  if (op->hasTrait<OpTrait::IsTerminator>() || op->getNumResults() == 0)
    return;
  if (double flops = getProductFlops(op))
    return addProduct(op, flops, work);
  if (auto lookup = dyn_cast<dist::LookupOpInterface>(op))
    if (std::optional<unsigned> table = lookup.getTableOperand()) {
      int64_t read = getTensorBytes(op->getResult(0).getType());
      work.tableBytes += std::max<int64_t>(0, getTensorBytes(op->getOperand(*table).getType()) - read);
    }
  if (op->hasTrait<dist::MovesOnly>() || op->hasTrait<dist::Generates>() || isa<rt::PrepareOp>(op))
    return;
  if (work.kind == KernelWork::Move)
    work.kind = KernelWork::Rows;
  double elements = 0;
  auto add = [&](Type type) {
    if (auto tensor = dyn_cast<RankedTensorType>(type); tensor && tensor.hasStaticShape())
      elements = std::max(elements, double(tensor.getNumElements()));
  };
  // An op that combines elements visits those of its first operand.
  if (op->getNumOperands() > 0 && op->hasTrait<dist::Combines>() && !isa<dist::MatrixOpInterface>(op))
    add(op->getOperand(0).getType());
  add(op->getResult(0).getType());
  (op->hasTrait<dist::Cheap>() ? work.cheapElements : work.costlyElements) += elements;
}

int64_t meshwright::getWeightBytes(FunctionOpInterface function) {
  int64_t bytes = 0;
  if (!function)
    return bytes;
  for (BlockArgument argument : function.getArguments())
    if (!function.getArgAttr(argument.getArgNumber(), nn::NnDialect::kInputAttr))
      bytes += getTensorBytes(argument.getType());
  return bytes;
}

int64_t meshwright::getComputeTime(Operation *op, const CostModel &model) {
  int64_t bytes = 0;
  for (Value value : op->getOperands())
    bytes += getTensorBytes(value.getType());
  for (Value value : op->getResults())
    bytes += getTensorBytes(value.getType());
  if (model.getDevice().rates) {
    KernelWork work;
    addWork(op, work);
    work.bytes = bytes;
    return model.getKernelTime(work, getWeightBytes(op->getParentOfType<FunctionOpInterface>()));
  }
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

ProgramSet<Value> meshwright::getValuesInMemory(Block &block) {
  ProgramSet<Value> inMemory(block.args_begin(), block.args_end());
  for (Operation &op : block) {
    if (!standsAlone(&op))
      continue;
    for (Value operand : op.getOperands())
      inMemory.insert(skipViews(operand));
    inMemory.insert(op.result_begin(), op.result_end());
  }
  return inMemory;
}

static bool writesMemory(Operation *op, const ProgramSet<Value> &inMemory) {
  return llvm::any_of(op->getResults(), [&](Value result) { return inMemory.contains(result); });
}

int64_t meshwright::getFusedBytes(Operation *op, const ProgramSet<Value> &inMemory) {
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

/// The side that has more of the rows has room for the worst load.
int64_t meshwright::getMovedElements(dist::CollectiveOpInterface op, unsigned i) {
  auto from = cast<RankedTensorType>(op->getOperand(i).getType());
  auto to = cast<RankedTensorType>(op->getResult(i).getType());
  std::optional<int64_t> all = nn::getNumGroups(op->getOperand(i));
  auto getExpected = [&](RankedTensorType rows) {
    return all && nn::getRouted(rows) ? nn::getExpectedElements(rows, *all) : dist::getExpectedElements(rows);
  };
  int64_t elements = std::min(getExpected(from), getExpected(to));
  int64_t room = std::max(dist::getStoredElements(from), dist::getStoredElements(to));
  return std::min(int64_t(double(elements) * dist::getRowLoad(op)), room);
}

ProgramCost meshwright::getProgramCost(FunctionOpInterface function, const CostModel &model) {
  ProgramCost cost;
  Block &body = function.getFunctionBody().front();
  ProgramSet<Value> inMemory = getValuesInMemory(body);
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
    cost.compute += writesMemory(&op, inMemory) ? model.getLaunchTime() : 0;
    KernelWork work;
    work.bytes = getFusedBytes(&op, inMemory);
    if (model.getDevice().rates)
      addWork(&op, work);
    // The bytes count of a table only the rows that are read.
    work.tableBytes = 0;
    cost.compute += model.getKernelTime(work, /*allWeights=*/0);
  }
  return cost;
}

//===- Pages.cpp - pages are written before they are read -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/Pages.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/Matchers.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// The writes that give a cache its rows, and the arguments whose rows it has without a write.
struct Contents {
  llvm::SetVector<Operation *> writes;
  llvm::SetVector<BlockArgument> arguments;
};

/// A value with a result of attention for each part of the keys, along a dimension. It is negative if a reshape gave
/// the parts to several dimensions, or to one of several of one element.
struct Parts {
  Operation *attention = nullptr;
  unsigned result = 0;
  int64_t dim = 0;
};

class PagesProof {
public:
  PagesProof(func::FuncOp func, const PlacementAnalysis &layouts) : func(func), layouts(layouts) {}
  LogicalResult visit(Operation *op);

private:
  /// The value that the function gives the state of an argument; null if there is none.
  Value getNewValue(BlockArgument state);
  LogicalResult checkCache(Operation *op, unsigned operand);
  LogicalResult checkNumbers(Operation *op, Value deals, int64_t partsDim);
  LogicalResult checkMerge(Operation *op, int64_t dim);
  LogicalResult passParts(Operation *op);

  func::FuncOp func;
  const PlacementAnalysis &layouts;
  ProgramMap<Value, Parts> partsOf;
};

} // namespace

/// The operand of which the only result has other rows; null for other ops.
static Value getWritten(Operation *op) {
  if (op->hasTrait<ReplacesRows>())
    return op->getOperand(0);
  auto pages = dyn_cast<PagesOpInterface>(op);
  std::optional<unsigned> operand = pages ? pages.getWritten() : std::nullopt;
  return operand ? op->getOperand(*operand) : Value();
}

/// The operand from which a collective of several values gives a result; null for other ops.
static Value getMoved(Value result) {
  auto collective = result.getDefiningOp<CollectiveOpInterface>();
  if (!collective || collective->getNumOperands() != collective->getNumResults())
    return {};
  return collective->getOperand(cast<OpResult>(result).getResultNumber());
}

static Contents getContents(Value value) {
  Contents contents;
  llvm::SetVector<Value> open;
  open.insert(value);
  for (size_t i = 0; i < open.size(); ++i) {
    Value next = open[i];
    Operation *op = next.getDefiningOp();
    if (!op)
      contents.arguments.insert(cast<BlockArgument>(next));
    else if (getWritten(op))
      contents.writes.insert(op);
    else if (Value moved = getMoved(next))
      open.insert(moved);
    else
      open.insert(op->operand_begin(), op->operand_end());
  }
  return contents;
}

/// The arguments over whose rows a write writes.
static llvm::SetVector<BlockArgument> getTables(Operation *write) {
  llvm::SetVector<BlockArgument> arguments;
  llvm::SetVector<Operation *> open;
  open.insert(write);
  for (size_t i = 0; i < open.size(); ++i) {
    Contents table = getContents(getWritten(open[i]));
    arguments.insert(table.arguments.begin(), table.arguments.end());
    open.insert(table.writes.begin(), table.writes.end());
  }
  return arguments;
}

/// Those of some writes that write over the rows of an argument.
static llvm::SetVector<Operation *> getWritesOf(const Contents &contents, BlockArgument argument) {
  llvm::SetVector<Operation *> own;
  for (Operation *write : contents.writes)
    if (getTables(write).contains(argument))
      own.insert(write);
  return own;
}

Value PagesProof::getNewValue(BlockArgument state) {
  auto name = func.getArgAttrOfType<StringAttr>(state.getArgNumber(), nn::NnDialect::kStateAttr);
  for (unsigned i = 0; name && i < func.getNumResults(); ++i)
    if (func.getResultAttr(i, nn::NnDialect::kStateAttr) == name)
      return func.getBody().front().getTerminator()->getOperand(i);
  return {};
}

LogicalResult PagesProof::checkCache(Operation *op, unsigned operand) {
  Contents have = getContents(op->getOperand(operand));
  llvm::SetVector<BlockArgument> states = have.arguments;
  for (Operation *write : have.writes)
    for (BlockArgument argument : getTables(write))
      states.insert(argument);
  for (BlockArgument state : states) {
    Value value = getNewValue(state);
    if (!value)
      continue;
    auto refuse = [&](StringRef got) {
      InFlightDiagnostic error =
          op->emitOpError() << "expected operand " << operand << " to be the new value of the state "
                            << func.getArgAttr(state.getArgNumber(), nn::NnDialect::kStateAttr) << ", got " << got;
      error.attachNote(value.getLoc()) << "the new value is from here";
      return error;
    };
    if (have.arguments.contains(state))
      return refuse("rows that the step does not write before the op reads them");
    llvm::SetVector<Operation *> want = getWritesOf(getContents(value), state);
    llvm::SetVector<Operation *> own = getWritesOf(have, state);
    if (llvm::any_of(want, [&](Operation *write) { return !own.contains(write); }) || own.size() != want.size())
      return refuse("rows of other writes");
  }
  return success();
}

LogicalResult PagesProof::checkNumbers(Operation *op, Value deals, int64_t partsDim) {
  const Layout *numbers = layouts.lookup(deals), *results = layouts.lookup(op->getResult(0));
  auto refuse = [&] {
    return op->emitOpError("expected deals with a number of its own for each range of pages, got equal ones");
  };
  // A range of each rank has the rank's number.
  if (numbers && results && results->dims[partsDim].isSharded() && !numbers->dims.front().isSharded())
    return refuse();
  for (Value source = deals; source; source = getMoved(source)) {
    DenseIntElementsAttr constant;
    if (!matchPattern(source, m_Constant(&constant)))
      continue;
    llvm::SmallDenseSet<int64_t> known;
    for (const APInt &number : constant.getValues<APInt>())
      if (!known.insert(number.getSExtValue()).second)
        return refuse();
  }
  return success();
}

LogicalResult PagesProof::checkMerge(Operation *op, int64_t dim) {
  Parts parts = partsOf.lookup(op->getOperand(0)), lses = partsOf.lookup(op->getOperand(1));
  // The caller vouches for arguments.
  if (!parts.attention && !lses.attention)
    return success();
  for (auto [operand, have] : {std::pair(0, parts), std::pair(1, lses)})
    if (have.attention && ((have.dim >= 0 && have.dim != dim) || int(have.result) != operand))
      return op->emitOpError() << "expected operand " << operand << " to be result " << operand
                               << " of attention, with its parts along dimension " << dim << ", got result "
                               << have.result << " with parts along dimension " << have.dim;
  if (parts.attention == lses.attention)
    return success();
  InFlightDiagnostic error = op->emitOpError()
                             << "expected operand 1 to be the log-sum-exps of the parts in operand 0, got others";
  for (auto [operand, have] : {std::pair(0, parts), std::pair(1, lses)})
    if (have.attention)
      error.attachNote(have.attention->getLoc()) << "operand " << operand << " is of the attention from here";
  return error;
}

/// The dimension of a reshaped value that has the parts of another one. Negative if it is not at the same place.
static int64_t getReshapedDim(Value from, Value to, int64_t dim) {
  ArrayRef<int64_t> have = shapeOf(from), want = shapeOf(to);
  size_t end = dim + 1;
  return want.size() >= end && have.take_front(end) == want.take_front(end) ? dim : -1;
}

/// Follows parts through ops that treat them one by one. An op that computes with them together, as an expanded merge
/// does, has results that are no parts.
LogicalResult PagesProof::passParts(Operation *op) {
  std::optional<FactorRule> rule;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    Parts parts = partsOf.lookup(operand);
    if (!parts.attention || op->hasTrait<OpTrait::IsTerminator>())
      continue;
    if (isa<CollectiveOpInterface>(op) && !isa<ShardingRuleOpInterface>(op)) {
      for (Value result : op->getResults())
        if (getMoved(result) == operand)
          partsOf[result] = parts;
      continue;
    }
    // A view has each element once.
    if (op->hasTrait<View>() && i == 0) {
      int64_t dim = parts.dim < 0 ? -1 : getReshapedDim(operand, op->getResult(0), parts.dim);
      partsOf[op->getResult(0)] = {parts.attention, parts.result, dim};
      continue;
    }
    auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
    if (!ruled)
      continue;
    if (parts.dim < 0) {
      if (op->hasTrait<Reindexes>())
        partsOf[op->getResult(0)] = parts;
      continue;
    }
    if (!rule)
      rule = ruled.getFactorRule();
    const FactorRule::DimFactors &factors = rule->operands[i][parts.dim];
    bool isKept = !factors.empty() && llvm::all_of(factors, [&](int factor) {
      return rule->factors[factor].kind == FactorKind::Parallel;
    });
    for (auto [result, dims] : llvm::zip_equal(op->getResults(), rule->results)) {
      auto at = llvm::find(dims, factors);
      isKept &= at != dims.end();
      if (isKept)
        partsOf[result] = {parts.attention, parts.result, int64_t(at - dims.begin())};
    }
    if (isKept || !op->hasTrait<MovesOnly>())
      continue;
    InFlightDiagnostic error = op->emitOpError()
                               << "takes or joins parts in operand " << i
                               << ": expected a merge to read all parts of the attention, each once";
    error.attachNote(parts.attention->getLoc()) << "the attention";
    return error;
  }
  return success();
}

LogicalResult PagesProof::visit(Operation *op) {
  auto pages = dyn_cast<PagesOpInterface>(op);
  if (!pages || getWritten(op))
    return passParts(op);
  for (unsigned operand : pages.getCaches())
    if (failed(checkCache(op, operand)))
      return failure();
  if (std::optional<int64_t> dim = pages.getPartsDim()) {
    for (OpResult result : op->getResults())
      partsOf[result] = {op, result.getResultNumber(), *dim};
    if (Value deals = pages.getRangeNumbers())
      return checkNumbers(op, deals, *dim);
  }
  if (std::optional<int64_t> dim = pages.getMergedDim())
    return checkMerge(op, *dim);
  return success();
}

LogicalResult meshwright::verifyPages(func::FuncOp func, const PlacementAnalysis &layouts) {
  PagesProof proof(func, layouts);
  for (Operation &op : func.getBody().front())
    if (failed(proof.visit(&op)))
      return failure();
  return success();
}

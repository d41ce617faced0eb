//===- EqualElements.cpp - layouts that local ops state -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A local value whose elements are equal along a dimension does not show how many there are on all
// ranks. Local ops that depend on this number state it (see OperandLayouts.h):
// - contractions of the dimension, and the first of the ops that gather it;
// - ops that read one element of it beside an operand that broadcasts, as a mask does. Else its element
//   would be the only one, as that of the other operand.
// Other operands mostly show the number, and then nothing is stated.
//
// A local reshape does not show to which dimension of its result the coordinate of a chunk belongs, if
// dimensions of one element may have it. It states their layouts. A local broadcast of a chunk of one
// element to one is no more than its input, and states that there are others.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/OperandLayouts.h"
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The factors along which the elements of all operands that have them are equal. They are not along
/// a factor that the op reads as a whole, as a running sum does.
llvm::SmallBitVector Partitioner::getEqualFactors(Operation *op) const {
  const FactorRule &rule = factors.getFactors(op).rule;
  llvm::SmallBitVector equal(rule.factors.size(), true);
  for (auto [f, factor] : llvm::enumerate(rule.factors))
    if (factor.kind == FactorKind::Special || factor.kind == FactorKind::Expandable)
      equal.reset(f);
  for (auto [operand, dims] : llvm::zip_equal(op->getOperands(), rule.operands)) {
    auto it = equalDims.empty() ? equalDims.end() : equalDims.find(operand);
    for (auto [d, dim] : llvm::enumerate(dims))
      if (it == equalDims.end() || !it->second.test(d))
        for (int factor : dim)
          equal.reset(factor);
  }
  return equal;
}

void Partitioner::noteEqualElements(Operation *op) {
  auto note = [&](Value value, function_ref<bool(unsigned)> isEqual) {
    llvm::SmallBitVector dims(cast<RankedTensorType>(value.getType()).getRank());
    for (unsigned d = 0; d < dims.size(); ++d)
      dims[d] = isEqual(d);
    if (dims.any())
      equalDims.try_emplace(value, std::move(dims));
  };
  if (op->getNumOperands() == 0) {
    if (auto model = dyn_cast<LocalOpInterface>(op))
      note(op->getResult(0), [&](unsigned d) { return model.hasEqualElements(d); });
    return;
  }
  llvm::SmallBitVector equal = getEqualFactors(op);
  if (equal.none())
    return;
  // A reshape may merge equal elements with others, as groups of tokens that are alike with the tokens
  // of a group. The statement of a layout that other elements show, too, is true.
  const FactorRule &rule = factors.getFactors(op).rule;
  for (auto [result, dims] : llvm::zip_equal(op->getResults(), rule.results))
    note(result, [&, dims = &dims](unsigned d) {
      return llvm::any_of((*dims)[d], [&](int factor) { return equal.test(factor); });
    });
}

void Partitioner::stateEqual(Operation *op, Operation *local, const Assignment &assignment) {
  if (equalDims.empty())
    return;
  const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
  const FactorRule &rule = opFactors.rule;
  llvm::SmallBitVector equal = getEqualFactors(op);
  if (equal.none())
    return;
  bool anyBroadcast = llvm::any_of(rule.operands, [](const FactorRule::ValueFactors &dims) {
    return llvm::any_of(dims, [](const FactorRule::DimFactors &dim) { return dim.empty(); });
  });
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    bool isSharded = llvm::any_of(assignment[f], [](const AxisList &axes) { return !axes.empty(); });
    bool counts = factor.kind == FactorKind::Contracted || anyBroadcast;
    if (!isSharded || !counts || !equal.test(f))
      continue;
    for (auto [i, operand] : llvm::enumerate(local->getOperands())) {
      if (i >= rule.operands.size() || !FactorRule::hasFactor(rule.operands[i], f))
        continue;
      Value global = op->getOperand(i);
      Layout layout =
          getLayout(global, project(global, rule.operands[i], opFactors, assignment));
      // A maximum of equal elements is the same with those in padding.
      if (factor.isReducedBy(ReductionKind::Max))
        for (auto [dim, own] : llvm::zip_equal(rule.operands[i], layout.dims))
          for (LayoutFactor &piece : own.factors)
            if (llvm::is_contained(dim, int(f)))
              piece.size = piece.padded;
      llvm::SmallBitVector dims(layout.getRank());
      for (auto [d, dim] : llvm::enumerate(rule.operands[i]))
        dims[d] = llvm::is_contained(dim, int(f));
      stateLayout(local, i, layout, dims, symbol, mesh);
      break;
    }
  }
}

void Partitioner::stateSplit(Value global, Operation *local, const ValueSharding &sharding) {
  auto model = dyn_cast<LocalOpInterface>(local);
  if (!model || !model.hidesDims())
    return;
  Layout layout = getLayout(global, sharding);
  llvm::SmallBitVector dims(layout.getRank());
  for (auto [d, dim] : llvm::enumerate(layout.dims))
    dims[d] = dim.getLocalSize() == 1;
  if (dims.any())
    stateResult(local, 0, layout, dims, symbol, mesh);
}

void Partitioner::stateMasked(Value global, const ValueSharding &sharding, Value from, Value to) {
  auto it = equalDims.find(global);
  if (it == equalDims.end())
    return;
  Layout layout = getLayout(global, sharding);
  llvm::SmallBitVector dims(layout.getRank());
  for (auto [d, dim] : llvm::enumerate(layout.dims))
    dims[d] = it->second.test(d) && dim.isSharded() && dim.getLocalSize() == 1;
  if (dims.none())
    return;
  while (to != from) {
    Operation *mask = to.getDefiningOp();
    bool isView = mask->hasTrait<View>();
    if (!isView && mask->getOperand(1).getType() == from.getType())
      stateLayout(mask, 1, layout, dims, symbol, mesh);
    to = mask->getOperand(isView ? 0 : 1);
  }
}

void Partitioner::stateGathered(Value global, const Local &from, const ValueSharding &to,
                                Operation *before) {
  auto it = equalDims.find(global);
  if (it == equalDims.end())
    return;
  Layout layout = getLayout(global, from.sharding);
  llvm::SmallBitVector gathered(layout.getRank());
  for (auto [d, dim] : llvm::enumerate(from.sharding.dims))
    gathered[d] = it->second.test(d) && layout.dims[d].isSharded() && dim != to.dims[d];
  if (gathered.none())
    return;
  Block *block = builder.getInsertionBlock();
  for (Operation *op = before ? before->getNextNode() : &block->front(); op; op = op->getNextNode())
    for (auto [i, operand] : llvm::enumerate(op->getOperands()))
      if (operand == from.value)
        stateLayout(op, i, layout, gathered, symbol, mesh);
}

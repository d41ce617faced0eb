//===- Counted.cpp - rows of groups that have numbers of true ones --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Checks the numbers of an op: a number for each group, and at least one row of each kind.
static LogicalResult verifyCounts(Operation *op, Type counts, int64_t tokens, int64_t rows) {
  auto type = dyn_cast<RankedTensorType>(counts);
  if (!type || !type.hasStaticShape() || type.getRank() != 1 || !type.getElementType().isInteger(64))
    return op->emitOpError() << "expected the numbers of true rows to be a tensor of i64 with one "
                                "dimension, got "
                             << counts;
  if (tokens < 1 || rows < 1)
    return op->emitOpError() << "expected at least 1 row of a group and of all groups, got " << tokens
                             << " and " << rows;
  return success();
}

/// Checks that two types differ in the size of `dim` alone.
static LogicalResult verifyOtherDims(Operation *op, Type in, Type out, int64_t dim) {
  auto from = cast<RankedTensorType>(in), to = cast<RankedTensorType>(out);
  if (dim < 0 || dim >= from.getRank())
    return op->emitOpError() << "dimension " << dim << " is out of range for " << from;
  SmallVector<int64_t> shape(from.getShape());
  if (from.getRank() == to.getRank())
    shape[dim] = to.getDimSize(dim);
  if (from.clone(shape) != to)
    return op->emitOpError() << "expected operand and result to differ in dimension " << dim
                             << " alone, got " << from << " and " << to;
  return success();
}

//===----------------------------------------------------------------------===//
// dist.compact, dist.expand
//===----------------------------------------------------------------------===//

/// - there is a number for each group;
/// - one side has the rows of all groups, the other one the true rows of each replica.
template <typename Op> static LogicalResult verifyCounted(Op op, Value ofGroups, Value ofReplicas) {
  int64_t tokens = op.getTokens(), rows = op.getRows(), dim = op.getDim();
  if (failed(verifyCounts(op, op.getCounts().getType(), tokens, rows)) ||
      failed(verifyOtherDims(op, op.getInput().getType(), op.getResult().getType(), dim)))
    return failure();
  auto sizeOf = [&](Value value) { return cast<RankedTensorType>(value.getType()).getDimSize(dim); };
  int64_t groups = cast<RankedTensorType>(op.getCounts().getType()).getDimSize(0);
  if (sizeOf(ofGroups) != groups * tokens)
    return op.emitOpError() << "expected " << groups << " groups of " << tokens
                            << " rows in dimension " << dim << ", got " << sizeOf(ofGroups);
  int64_t replicas = sizeOf(ofReplicas) / rows;
  if (sizeOf(ofReplicas) % rows != 0 || replicas == 0 || groups % replicas != 0)
    return op.emitOpError() << "expected " << rows
                            << " rows for each replica of the groups in dimension " << dim
                            << ", got " << sizeOf(ofReplicas);
  return success();
}

/// Replicas are apart. Groups and their tokens are read whole, as are the numbers.
template <typename Op> static FactorRule getCountedRule(Op op, Value ofGroups, Value ofReplicas) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(ofReplicas.getType()).getShape();
  int64_t dim = op.getDim(), rows = op.getRows(), replicas = shape[dim] / rows;
  int64_t groups = cast<RankedTensorType>(op.getCounts().getType()).getDimSize(0) / replicas;
  FactorRule rule;
  FactorRule::ValueFactors true_, all, counts(1);
  for (auto [d, size] : llvm::enumerate(shape))
    true_.push_back(int64_t(d) == dim ? FactorRule::DimFactors() : FactorRule::DimFactors{rule.addFactor(size)});
  all = true_;
  auto add = [&](FactorRule::DimFactors &to, int64_t size) {
    to.push_back(rule.addFactor(size, FactorKind::Special));
  };
  if (replicas > 1) {
    int replica = rule.addFactor(replicas);
    for (FactorRule::DimFactors *own : {&true_[dim], &all[dim], &counts[0]})
      own->push_back(replica);
  }
  add(true_[dim], rows);
  add(all[dim], groups);
  add(all[dim], op.getTokens());
  add(counts[0], groups);
  bool isCompact = op.getInput() == ofGroups;
  rule.operands = {isCompact ? all : true_, counts};
  rule.results = {isCompact ? true_ : all};
  rule.linearOperands = {0};
  return rule;
}

LogicalResult CompactOp::verify() { return verifyCounted(*this, getInput(), getResult()); }
FactorRule CompactOp::getFactorRule() { return getCountedRule(*this, getInput(), getResult()); }
padding::Padding CompactOp::getResultPadding(const padding::Operands &in) {
  return padding::meet(in[0], padding::Padding::Zero);
}

LogicalResult ExpandOp::verify() { return verifyCounted(*this, getResult(), getInput()); }
FactorRule ExpandOp::getFactorRule() { return getCountedRule(*this, getResult(), getInput()); }
padding::Padding ExpandOp::getResultPadding(const padding::Operands &in) {
  return padding::meet(in[0], padding::Padding::Zero);
}

//===----------------------------------------------------------------------===//
// dist.all_gather_v, dist.reduce_scatter_v
//===----------------------------------------------------------------------===//

/// - operands are rows and numbers in turns, with a dimension for each pair;
/// - a rank has rows of one group;
/// - the ranks have those of all groups.
template <typename Op> static LogicalResult verifyCountedCollective(Op op, bool gathers) {
  if (op->getNumOperands() % 2 != 0 || op.getDims().size() != op->getNumOperands() / 2)
    return op.emitOpError() << "expected rows and numbers in turns, with a dimension for each pair, got "
                            << op->getNumOperands() << " operands and " << op.getDims().size()
                            << " dimensions";
  FailureOr<int64_t> ranks = dist::detail::verifyAxes(op, op.getAxes());
  if (failed(ranks))
    return failure();
  int64_t tokens = op.getTokens(), rows = op.getRows();
  for (auto [pair, dim] : llvm::enumerate(op.getDims())) {
    Type in = op->getOperand(2 * pair).getType(), out = op->getResult(2 * pair).getType();
    Type counts = op->getOperand(2 * pair + 1).getType();
    if (failed(verifyCounts(op, counts, tokens, rows)) || failed(verifyOtherDims(op, in, out, dim)))
      return failure();
    auto part = cast<RankedTensorType>(gathers ? in : out);
    auto all = cast<RankedTensorType>(gathers ? out : in);
    int64_t groups = cast<RankedTensorType>(counts).getDimSize(0), own = part.getDimSize(dim);
    if (own == 0 || tokens % own != 0 || own * *ranks != groups * tokens)
      return op.emitOpError() << "expected each of " << *ranks << " ranks to have an equal part of the "
                              << tokens << " rows of one of " << groups << " groups, got " << own
                              << " rows";
    if (all.getDimSize(dim) != rows)
      return op.emitOpError() << "expected " << rows << " rows of all groups in dimension " << dim
                              << ", got " << all.getDimSize(dim);
  }
  return success();
}

LogicalResult AllGatherVOp::verify() { return verifyCountedCollective(*this, /*gathers=*/true); }
LogicalResult ReduceScatterVOp::verify() { return verifyCountedCollective(*this, /*gathers=*/false); }

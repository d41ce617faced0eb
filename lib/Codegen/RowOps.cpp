//===- RowOps.cpp - ops as row kernels see them ---------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/RowPlan.h"

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/Codegen/OpClasses.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/IR/Matchers.h"

using namespace mlir;

namespace meshwright::lower {

KernelRegion KernelRegion::of(rt::KernelOp launch) {
  KernelRegion region;
  for (Operation &op : launch.getOps())
    region.add(&op);
  for (BlockArgument argument : launch.getBlock().getArguments())
    if (argument.getArgNumber() != launch.getCountedBy() || !argument.use_empty())
      region.inputs.push_back(argument);
  for (Value result : launch.getYielded())
    region.outputs.push_back(result);
  return region;
}

KernelRegion KernelRegion::of(ArrayRef<Operation *> ops, ArrayRef<Value> outputs) {
  KernelRegion region;
  SmallVector<Operation *> sorted(ops);
  llvm::sort(sorted, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : sorted)
    region.add(op);
  for (Operation *op : sorted)
    for (Value operand : op->getOperands())
      if (!region.getDefiningOp(operand) && !llvm::is_contained(region.inputs, operand))
        region.inputs.push_back(operand);
  region.outputs.assign(outputs.begin(), outputs.end());
  return region;
}

SmallVector<Value> KernelRegion::getPositions() const {
  SmallVector<Value> positions;
  for (Operation *op : ops)
    if (isa<dist::PositionsOp>(op))
      positions.push_back(op->getResult(0));
  return positions;
}

int64_t getFirstIndex(dist::PositionsOp op, int64_t coordinate) {
  dist::LayoutFactor factor = dist::getFactor(op, dist::getSpmdMesh(op));
  int64_t chunks = dist::getNumShards(factor.axes);
  return (coordinate - factor.shift + chunks) % chunks * factor.getLocalSize();
}

dist::PositionsOp getTestedPositions(const KernelRegion &region, Operation *op) {
  auto compare = dyn_cast<nn::CompareOp>(op);
  if (!compare || compare.getKind() != nn::CompareKind::Ge)
    return nullptr;
  auto positions = dyn_cast_or_null<dist::PositionsOp>(region.getDefiningOp(compare.getLhs()));
  // One element for each position. Operands of other comparisons may be no integers.
  if (!positions || shapeOf(compare.getResult()) != shapeOf(positions.getResult()))
    return nullptr;
  // In another order, elements behind a run-time size are not the last ones.
  if (positions.getSize() && positions.getFactor().getOrder() != TokenOrder::Contiguous)
    return nullptr;
  DenseElementsAttr bound;
  bool isTest = matchPattern(compare.getRhs(), m_Constant(&bound)) && bound.isSplat() &&
                bound.getSplatValue<APInt>().isZero();
  return isTest ? positions : nullptr;
}

//===----------------------------------------------------------------------===//
// Reductions and rotations
//===----------------------------------------------------------------------===//

/// The least number of trailing dimensions that include all dimensions an op reduces.
/// Returns 0 if it does not reduce all of them.
static int64_t getReducedDims(Operation *op) {
  if (op->hasTrait<dist::RowNorm>())
    return shapeOf(op->getOperand(0)).empty() ? 0 : 1;
  ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  int64_t rank = shape.size();
  if (auto softmax = dyn_cast<nn::SoftmaxOp>(op))
    return ShapedType::getNumElements(shape.drop_front(softmax.getDim() + 1)) == 1
               ? rank - softmax.getDim()
               : 0;
  auto reduce = dyn_cast<nn::ReduceOp>(op);
  if (!reduce)
    return 0;
  int64_t first = rank;
  for (int64_t dim : reduce.getDims())
    first = shape[dim] == 1 ? first : std::min(first, dim);
  if (first == rank)
    return 1;
  for (int64_t d = first; d < rank; ++d)
    if (shape[d] != 1 && !llvm::is_contained(reduce.getDims(), d))
      return 0;
  return rank - first;
}

bool isRowReduction(Operation *op) {
  return (op->hasTrait<dist::RowNorm>() || isa<nn::SoftmaxOp, nn::ReduceOp>(op)) &&
         getReducedDims(op) > 0;
}

int64_t getRowColumns(Operation *op) {
  if (auto reduce = dyn_cast<nn::ReduceOp>(op)) {
    int64_t columns = 1;
    for (int64_t dim : reduce.getDims())
      columns *= shapeOf(reduce.getInput())[dim];
    return columns;
  }
  return ShapedType::getNumElements(shapeOf(op->getOperand(0)).take_back(getReducedDims(op)));
}

bool isRowOp(Operation *op) {
  // An order is between kernels.
  if (isa<dist::AfterOp>(op))
    return false;
  return isElementwise(op) || op->hasTrait<dist::View>() || isRowReduction(op) ||
         hasColumnSections(op) || isa<dist::PadOp>(op);
}

bool hasColumnSections(Operation *op) { return isa<nn::RotaryOp, nn::ConcatOp>(op); }

SmallVector<RotarySection> getRotarySections(nn::RotaryOp op) {
  int64_t features = shapeOf(op.getInput()).back(), rotated = shapeOf(op.getCos()).back();
  SmallVector<RotarySection> sections;
  if (op.getInterleaved())
    sections.push_back({RotarySection::Pairs, 0, rotated});
  else
    sections = {{RotarySection::First, 0, rotated / 2},
                {RotarySection::Second, rotated / 2, rotated}};
  if (rotated < features)
    sections.push_back({RotarySection::Rest, rotated, features});
  return sections;
}

int64_t getRotaryShift(nn::RotaryOp op, RotarySection::Kind kind) {
  int64_t half = shapeOf(op.getCos()).back() / 2;
  return kind == RotarySection::First ? half : -half;
}

std::optional<Access> getStatisticRow(Operation *op, const Access &access, const LoopSpace &space) {
  if (isa<nn::ReduceOp>(op)) {
    if (access.column != 0)
      return std::nullopt;
    int64_t columns = getRowColumns(op);
    Access row = access;
    for (int64_t &coefficient : row.rows)
      coefficient *= columns;
    row.offset *= columns;
    return row;
  }
  ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  auto dims = delinearize(access, shape, space);
  if (!dims)
    return std::nullopt;
  size_t kept = shape.size() - getReducedDims(op);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d >= kept) {
      // The op reads the whole row for each of its elements.
      if (!(*dims)[d].isConstantInRows())
        return std::nullopt;
      (*dims)[d].column = (*dims)[d].offset = 0;
    } else if ((*dims)[d].column != 0) {
      return std::nullopt;
    }
  }
  return linearize(*dims, shape, space.rows.size());
}

const Statistic *findStatistic(const RowPiece &piece, Operation *op, unsigned stage,
                               const Access &row) {
  for (const Statistic &statistic : piece.statistics)
    if (statistic.op == op && statistic.stage == stage && statistic.row == row)
      return &statistic;
  return nullptr;
}

//===----------------------------------------------------------------------===//
// Sections of columns
//===----------------------------------------------------------------------===//

std::optional<SmallVector<ColumnSection>> getColumnSections(Operation *op, const Access &access,
                                                            const LoopSpace &space) {
  Value result = op->getResult(0);
  ArrayRef<int64_t> shape = shapeOf(result);
  auto dims = delinearize(access, shape, space);
  if (!dims)
    return std::nullopt;
  auto concat = dyn_cast<nn::ConcatOp>(op);
  int64_t dim = concat ? int64_t(concat.getDim()) : int64_t(shape.size()) - 1;
  const Access &along = (*dims)[dim];
  // One element of the dimension for each column, or one for all columns.
  bool isPoint = along.column == 0;
  if (!along.isConstantInRows() || (!isPoint && along.column != 1))
    return std::nullopt;
  SmallVector<ColumnSection> sections;
  auto add = [&](Value operand, int64_t from, int64_t begin, int64_t end,
                 RotarySection::Kind kind) {
    // The columns at which the index in the dimension is within begin .. end.
    int64_t first = isPoint ? space.begin : begin - along.offset;
    int64_t last = isPoint ? space.end : end - along.offset;
    if (isPoint && (along.offset < begin || along.offset >= end))
      return;
    first = std::max(first, space.begin);
    last = std::min(last, space.end);
    if (first < last)
      sections.push_back({operand, kind, first, last, from, along.offset + along.column * first});
  };
  if (concat) {
    int64_t at = 0;
    for (Value operand : concat.getInputs()) {
      int64_t size = shapeOf(operand)[dim];
      add(operand, at, at, at + size, RotarySection::Rest);
      at += size;
    }
  } else {
    for (const RotarySection &section : getRotarySections(cast<nn::RotaryOp>(op)))
      add(op->getOperand(0), 0, section.begin, section.end, section.kind);
  }
  return sections;
}

std::optional<Access> getSectionAccess(Operation *op, Value operand, int64_t from, int64_t shift,
                                       const Access &access, const LoopSpace &space) {
  ArrayRef<int64_t> shape = shapeOf(op->getResult(0)), operandShape = shapeOf(operand);
  auto dims = delinearize(access, shape, space);
  if (!dims)
    return std::nullopt;
  auto concat = dyn_cast<nn::ConcatOp>(op);
  size_t missing = shape.size() - operandShape.size();
  SmallVector<Access> read(dims->begin() + missing, dims->end());
  int64_t dim = concat ? int64_t(concat.getDim()) : int64_t(operandShape.size()) - 1;
  read[dim].offset += shift - from;
  return linearize(read, operandShape, space.rows.size());
}

} // namespace meshwright::lower

//===- TableModels.cpp - tables whose rows are sharded --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank has some rows of a table. The op has an offset, which says where they begin in the whole
// table, and leaves out indices of other rows.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Placement/Models.h"
#include "meshwright/lib/Placement/RuleTransfer.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::layout_transfer;
using namespace meshwright::dist;

namespace {

class TableTransfer : public RuleTransfer {
public:
  explicit TableTransfer(const TransferContext &context)
      : RuleTransfer(context), lookup(cast<LookupOpInterface>(context.op)) {}

private:
  void refinePieces() override;
  LogicalResult checkTable() override;
  LogicalResult checkOwnPadding() override;
  DimLayout getTable();

  LookupOpInterface lookup;
};

} // namespace

/// The layout of the rows that the op makes.
DimLayout TableTransfer::getTable() {
  Layout layout;
  DimLayout &rows = layout.dims.emplace_back();
  for (int factor : rule.results[0][lookup.getTableDim()])
    rows.factors.append(pieces[factor].begin(), pieces[factor].end());
  canonicalize(layout, mesh);
  return layout.dims.front();
}

/// The layout of the rows of a table that the op makes: sharded over the axes of its offset, if
/// that is a coordinate. Those of experts that share rows are sharded as these are.
void TableTransfer::refinePieces() {
  if (lookup.getTableOperand())
    return;
  const FactorRule::DimFactors &table = rule.results[0][lookup.getTableDim()];
  int factor = table.front();
  if (table.size() > 1) {
    for (int own : ArrayRef(table).drop_front())
      if (owners[own] < 0)
        pieces[own].assign({makeFactor(rule.factors[own].size)});
    return;
  }
  LayoutFactor rows = makeFactor(rule.factors[factor].size);
  Value offset = lookup.getTableOffset();
  if (auto index = offset ? rt::getSource(offset).getDefiningOp<AxisIndexOp>() : AxisIndexOp()) {
    rows.axes = dist::getAxes(index.getAxes(), mesh);
    canonicalizeAxes(rows.axes, mesh);
    rows.padded = rows.size * getNumShards(rows.axes);
    rows.size = std::min(nn::getTableRows(lookup).value_or(rows.padded), rows.padded);
  }
  pieces[factor].assign({rows});
}

/// Checks a table whose rows are sharded, which needs an offset:
/// - The offset is a coordinate over the axes of the rows.
/// - A chunk has as many rows as the offset counts for each rank, in contiguous order.
/// - The stated number of rows is the size of the table.
LogicalResult TableTransfer::checkTable() {
  std::optional<unsigned> table = lookup.getTableOperand(), offset = lookup.getOffsetOperand();
  DimLayout rows;
  if (table)
    rows = operands[*table]->dims[lookup.getTableDim()];
  else
    rows = getTable();
  AxisList axes = rows.getAxes();
  if (!offset) {
    if (axes.empty())
      return success();
    return report(context,
                  (table ? "reads" : "makes") + Twine(" a table whose rows are sharded over ") +
                      toString(axes, mesh) + " without an offset",
                  table.value_or(0));
  }
  auto index = rt::getSource(lookup.getTableOffset()).getDefiningOp<AxisIndexOp>();
  if (!index) {
    if (axes.empty())
      return success();
    return report(context, "expected the offset of a sharded table to be a dist.axis_index",
                  *offset);
  }
  AxisList own = dist::getAxes(index.getAxes(), mesh);
  canonicalizeAxes(own, mesh);
  if (own != axes)
    return report(context,
                  "expected an offset along the axes of the table's rows, " + toString(axes, mesh) +
                      ", got " + toString(own, mesh),
                  *offset);
  if (llvm::any_of(rows.factors, [](const LayoutFactor &f) { return !f.isContiguous(); }))
    return report(context, "counts rows of a table whose rows are not in contiguous order",
                  table.value_or(*offset));
  int64_t chunk = index.getChunk();
  if (chunk != rows.getLocalSize() || rows.factors.size() != 1)
    return report(context,
                  "expected an offset of " + Twine(rows.getLocalSize()) + " rows a rank, got " +
                      Twine(chunk),
                  *offset);
  int64_t size = rows.getGlobalSize(), stated = nn::getTableRows(lookup).value_or(size);
  if (stated != size)
    return report(context,
                  "expected an offset in a table of " + Twine(size) + " rows, got " + Twine(stated),
                  table.value_or(*offset));
  return success();
}

/// Checks that indices of padding name no row, where the op can skip them.
LogicalResult TableTransfer::checkOwnPadding() {
  if (!lookup.skipsMinusOne())
    return success();
  unsigned indices = lookup.getIndexOperand();
  for (auto [d, dim] : llvm::enumerate(operands[indices]->dims))
    for (const LayoutFactor &factor : dim.factors)
      if (factor.isPadded() && factor.padding != Padding{-1, -1})
        return report(context,
                      "routes padding of dimension " + Twine(d) + " of operand " + Twine(indices) +
                          ": expected -1 behind the " + Twine(factor.size) + " true of " +
                          Twine(factor.padded) + " elements, got " + padding::toString(factor.padding),
                      indices);
  return success();
}

namespace {

/// Rows by their indices in a whole dimension.
class RowTransfer : public RuleTransfer {
public:
  using RuleTransfer::RuleTransfer;

private:
  LogicalResult checkOwnPadding() override;
};

/// Returns true if the program computes a value from nothing that comes at run time.
bool isStatic(Value value) {
  Operation *op = rt::getSource(value).getDefiningOp();
  return op && !op->hasTrait<TouchesPadding>() && llvm::all_of(op->getOperands(), isStatic);
}

} // namespace

/// Checks that no row of padding is read. An index that comes at run time is one of a true row, or
/// the program before its sizes were numbers would fail. An index that the program counts itself, up
/// to the largest size, is not.
LogicalResult RowTransfer::checkOwnPadding() {
  for (auto [d, factors] : llvm::enumerate(rule.operands[0]))
    for (int factor : factors)
      for (const LayoutFactor &piece : pieces[factor])
        if (piece.runtimeSize && isWhole(rule.factors[factor]) && isStatic(op->getOperand(1)) &&
            padding::getSplat(op->getOperand(1)) != 0.0)
          return report(context,
                        "takes rows of dimension " + Twine(d) + " of operand 0 by indices that do "
                            "not depend on its run-time size @" +
                            piece.runtimeSize.getValue(),
                        1);
  return success();
}

void layout_transfer::attachTableModels(MLIRContext *context) {
  nn::GatherOp::attachInterface<RuleModel<nn::GatherOp, RowTransfer>>(*context);
  nn::TakeAlongOp::attachInterface<RuleModel<nn::TakeAlongOp, RowTransfer>>(*context);
  nn::EmbeddingOp::attachInterface<RuleModel<nn::EmbeddingOp, TableTransfer>>(*context);
  nn::ScatterAddOp::attachInterface<RuleModel<nn::ScatterAddOp, TableTransfer>>(*context);
  nn::DispatchOp::attachInterface<RuleModel<nn::DispatchOp, TableTransfer>>(*context);
  nn::CombineOp::attachInterface<RuleModel<nn::CombineOp, TableTransfer>>(*context);
}

//===- TableModels.cpp - tables whose rows are sharded --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A rank has some rows of a table. The local op has an offset, which says where they begin in the
// whole table. It counts rows, so that each rank has rows that follow one another, in contiguous
// order.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/partition/MovedRowModels.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The factors of the rows of the table.
static ArrayRef<int> getRowFactors(LookupOpInterface lookup, const FactorRule &rule) {
  std::optional<unsigned> table = lookup.getTableOperand();
  return (table ? rule.operands[*table] : rule.results[0])[lookup.getTableDim()];
}

namespace {

template <typename OpT> struct TableModel : LocalOpInterface::ExternalModel<TableModel<OpT>, OpT> {
  bool passesPart(Operation *op, unsigned operand) const {
    return isa<nn::CombineOp>(op) && operand == 0;
  }
  FailureOr<bool> joinParts(Operation *op, Partitioner &partitioner) const {
    if (isa<nn::DispatchOp>(op))
      return sendRows(op, partitioner);
    return isa<nn::CombineOp>(op) ? combineRows(op, partitioner) : FailureOr<bool>(false);
  }

  /// Axes shard the major class of the rows alone.
  bool mayShard(Operation *op, const Partitioner &partitioner, int factor, size_t cls) const {
    const FactorAnalysis &factors = partitioner.getFactors();
    const FactorAnalysis::OpFactors &opFactors = factors.getFactors(op);
    ArrayRef<int> rows = getRowFactors(cast<LookupOpInterface>(op), opFactors.rule);
    if (!llvm::is_contained(rows, factor))
      return true;
    return factor == rows.front() && cls == 0 &&
           factors.getOrder(opFactors.classes[factor][cls]).order == TokenOrder::Contiguous;
  }

  /// Adds the offset if the rows are sharded.
  void addOperands(Operation *op, Partitioner &partitioner, const Assignment &assignment,
                   ArrayRef<Type> types, SmallVectorImpl<Value> &operands) const {
    auto lookup = cast<LookupOpInterface>(op);
    AxisList axes;
    for (int factor : getRowFactors(lookup, partitioner.getFactors().getFactors(op).rule))
      for (const AxisList &cls : assignment[factor])
        axes.append(cls.begin(), cls.end());
    if (axes.empty())
      return;
    std::optional<unsigned> table = lookup.getTableOperand();
    auto local = cast<RankedTensorType>(table ? operands[*table].getType() : types[0]);
    OpBuilder &builder = partitioner.getBuilder();
    operands.push_back(AxisIndexOp::create(
        builder, op->getLoc(), RankedTensorType::get({}, builder.getI64Type()),
        getAxesAttr(builder.getContext(), axes, partitioner.getMesh()),
        builder.getI64IntegerAttr(local.getDimSize(lookup.getTableDim()))));
  }

  /// States the rows of the whole table beside an offset.
  void fitFacts(Operation *op, Partitioner &partitioner, const Assignment &,
                Operation *local) const {
    if (local->getNumOperands() == op->getNumOperands())
      return;
    if (std::optional<int64_t> rows = nn::getTableRows(cast<LookupOpInterface>(op)))
      local->setAttr(nn::NnDialect::kTableRowsAttr,
                     partitioner.getBuilder().getI64IntegerAttr(*rows));
  }
};

} // namespace

void local_models::attachTableModels(MLIRContext *context) {
  nn::EmbeddingOp::attachInterface<TableModel<nn::EmbeddingOp>>(*context);
  nn::ScatterAddOp::attachInterface<TableModel<nn::ScatterAddOp>>(*context);
  nn::DispatchOp::attachInterface<TableModel<nn::DispatchOp>>(*context);
  nn::CombineOp::attachInterface<TableModel<nn::CombineOp>>(*context);
}

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
#include "meshwright/passes/partition/Partitioner.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The axes over which rows are made at their tokens, to be sent to their experts. None if tokens are gathered
/// instead: the axes of the experts do not shard tokens, or a token has as many experts as there are ranks, so
/// that its rows are more bytes than it is on all ranks.
static std::optional<Assignment> getTokenAssignment(nn::DispatchOp op, Partitioner &partitioner) {
  const FactorAnalysis::OpFactors &opFactors = partitioner.getFactors().getFactors(op);
  const FactorRule &rule = opFactors.rule;
  const ValueSharding &target = partitioner.getForm(op.getResult()).target;
  int experts = rule.results[0][0].front();
  AxisList axes;
  for (const AxisList &cls : target.dims[0])
    axes.append(cls.begin(), cls.end());
  if (shapeOf(op.getIndices()).back() >= getNumShards(axes) ||
      partitioner.isPadded(opFactors.classes[experts].front()))
    return std::nullopt;
  Assignment assignment;
  for (const FactorClasses &classes : opFactors.classes)
    assignment.emplace_back(classes.size());
  forEachClass(rule.results[0], target, opFactors, [&](int factor, size_t cls, const AxisList &own) {
    if (factor != experts)
      assignment[factor][cls] = own;
  });
  // Classes of tokens that move are the major ones of their dimensions, so that a rank has tokens that follow
  // one another.
  AxisList moved;
  bool isAlike = true;
  int64_t tokens = shapeOf(op.getIndices()).size() - 1;
  const ValueSharding &input = partitioner.getForm(op.getInput()).target;
  for (int64_t dim = 0; dim < tokens; ++dim) {
    bool isMajor = true;
    size_t next = 0;
    for (int factor : rule.operands[0][dim])
      for (auto [cls, index] : llvm::enumerate(opFactors.classes[factor])) {
        const AxisList &have = input.dims[dim][next++];
        AxisList &own = assignment[factor][cls];
        if (have != own) {
          isAlike &= own.empty() && isMajor && !partitioner.isPadded(index);
          moved.append(have);
          own = have;
        }
        isMajor &= partitioner.getFactors().getSize(index) == 1;
      }
  }
  return isAlike && moved == axes ? std::optional(std::move(assignment)) : std::nullopt;
}

/// The axes over which the rows of a routing are summed. None if they are not at the tokens.
static std::optional<Assignment> getReturnAssignment(nn::CombineOp op, Partitioner &partitioner) {
  nn::DispatchOp dispatch = nn::getDispatch(op.getRows());
  std::optional<Assignment> sent =
      dispatch ? getTokenAssignment(dispatch, partitioner) : std::nullopt;
  if (!sent)
    return std::nullopt;
  const FactorAnalysis &factors = partitioner.getFactors();
  const FactorAnalysis::OpFactors &from = factors.getFactors(dispatch), &to = factors.getFactors(op);
  const ValueSharding &rows = partitioner.getForm(op.getRows()).local.sharding;
  if (rows.dims[0] != partitioner.getForm(dispatch.getResult()).target.dims[0])
    return std::nullopt;
  ValueSharding atTokens =
      partitioner.project(dispatch.getResult(), from.rule.results[0], from, *sent);
  ValueSharding at = rows;
  for (int64_t dim = 0; dim <= nn::getNumTokenDims(op.getRows()); ++dim)
    at.dims[dim] = atTokens.dims[dim];
  Assignment assignment;
  for (const FactorClasses &classes : to.classes)
    assignment.emplace_back(classes.size());
  forEachClass(to.rule.operands[0], at, to,
               [&](int factor, size_t cls, const AxisList &axes) { assignment[factor][cls] = axes; });
  return assignment;
}

/// Handles a dispatch whose rows move to their experts.
static FailureOr<bool> sendRows(nn::DispatchOp op, Partitioner &partitioner) {
  std::optional<Assignment> assignment = getTokenAssignment(op, partitioner);
  if (!assignment)
    return false;
  if (failed(partitioner.partitionByRule(op, *assignment)))
    return failure();
  return true;
}

/// Handles a sum over experts of rows that return to their tokens, or that are parts of a sum, as those
/// of a row-parallel product are: the sum over experts shares the reduction. Returns false for other rows.
static FailureOr<bool> combineParts(nn::CombineOp op, Partitioner &partitioner) {
  const Partitioner::LocalForm &form = partitioner.getForm(op.getRows());
  std::optional<Assignment> returned = getReturnAssignment(op, partitioner);
  bool arePartial = form.isDeferred && form.rest.empty() && op.getRows().hasOneUse() &&
                    form.local.unreduced.reduction == ReductionKind::Sum;
  if (!arePartial) {
    if (returned && failed(partitioner.partitionByRule(op, *returned)))
      return failure();
    return returned.has_value();
  }
  Partitioner::Local rows = form.local;
  const FactorAnalysis::OpFactors &opFactors = partitioner.getFactors().getFactors(op);
  const FactorRule &rule = opFactors.rule;
  Assignment assignment;
  if (returned) {
    assignment = *returned;
    ValueSharding at = partitioner.project(op.getRows(), rule.operands[0], opFactors, assignment);
    auto moved = partitioner.reshard(op.getRows(), rows, at, op.getLoc(), rows.unreduced);
    if (failed(moved))
      return failure();
    rows.value = *moved;
    rows.sharding = std::move(at);
  } else {
    for (const FactorClasses &classes : opFactors.classes)
      assignment.emplace_back(classes.size());
    forEachClass(rule.operands[0], rows.sharding, opFactors,
                 [&](int factor, size_t cls, const AxisList &axes) { assignment[factor][cls] = axes; });
  }
  auto indices = partitioner.use(
      op.getIndices(), partitioner.project(op.getIndices(), rule.operands[1], opFactors, assignment),
      op.getLoc());
  if (failed(indices))
    return failure();
  SmallVector<Value, 3> operands{rows.value, *indices};
  if (failed(partitioner.maskIndices(op, assignment, operands)))
    return failure();
  ValueSharding sharding =
      partitioner.project(op.getResult(), rule.results[0], opFactors, assignment);
  Type type = partitioner.getLocalType(op.getResult(), sharding);
  auto model = cast<LocalOpInterface>(*op);
  model.addOperands(partitioner, assignment, type, operands);
  Operation *local = partitioner.emit(op, operands, type);
  model.fitFacts(partitioner, assignment, local);
  Part sum = rows.unreduced;
  for (const AxisList &axes : rows.sharding.dims[0])
    sum.axes.append(axes.begin(), axes.end());
  llvm::sort(sum.axes);
  canonicalizeAxes(sum.axes, partitioner.getMesh());
  if (failed(partitioner.define(op.getResult(), {local->getResult(0), sharding, std::move(sum)})))
    return failure();
  return true;
}

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
    if (auto dispatch = dyn_cast<nn::DispatchOp>(op))
      return sendRows(dispatch, partitioner);
    auto combine = dyn_cast<nn::CombineOp>(op);
    return combine ? combineParts(combine, partitioner) : FailureOr<bool>(false);
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

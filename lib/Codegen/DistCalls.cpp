//===- DistCalls.cpp - calls that perform ops of dist ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/CallModels.h"

#include "meshwright/dialects/Dist/Forms.h"

#include "llvm/ADT/bit.h"

using namespace mlir;

namespace meshwright::lower {

mw_rt_form getFormCall(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  dist::FormAttr form = dist::getForm(type);
  int64_t kind = form.getKind() == GatherKind::Mxfp8 ? MW_RT_MXFP8 : MW_RT_NVFP4;
  return {kind, form.getAlong(), tensor.getDimSize(0), tensor.getDimSize(1)};
}

mw_rt_form getFormCall(dist::DecodeOp op) {
  mw_rt_form form = getFormCall(op.getInput().getType());
  form.rows = shapeOf(op.getResult())[0];
  return form;
}

static LogicalResult describeMask(dist::MaskPaddingOp op, mw_rt_mask &what, RuntimeCall &call) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh) || failed(setAxes(op, dist::getAxes(op.getAxes(), *mesh), what.axes)))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getInput());
  int64_t dim = op.getDim();
  call.inputs = {op.getInput()};
  what.dtype = codeOf(op.getInput());
  what.outer = countOf(shape.take_front(dim));
  what.rows = shape[dim];
  what.inner = countOf(shape.drop_front(dim + 1));
  what.size = op.getSize();
  what.value = llvm::bit_cast<int64_t>(op.getValue().convertToDouble());
  return success();
}

static LogicalResult describeAxisIndex(dist::AxisIndexOp op, mw_rt_axis_index &what,
                                       RuntimeCall &) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  what.dtype = codeOf(op.getResult());
  if (what.dtype != MW_I64 && what.dtype != MW_I32)
    return op.emitOpError("expected type i64 or i32, got ")
           << getElementTypeOrSelf(op.getResult().getType());
  what.chunk = op.getChunk();
  return setAxes(op, dist::getAxes(op.getAxes(), *mesh), what.axes);
}

static_assert(int(TokenOrder::Contiguous) == MW_RT_CONTIGUOUS &&
              int(TokenOrder::Zigzag) == MW_RT_ZIGZAG && int(TokenOrder::Striped) == MW_RT_STRIPED);

static LogicalResult describeReorder(dist::ReorderOp op, mw_rt_reorder &what, RuntimeCall &call) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getInput());
  int64_t dim = op.getDim();
  dist::LayoutFactor from = dist::getFactor(op.getFrom(), *mesh);
  dist::LayoutFactor to = dist::getFactor(op.getTo(), *mesh);
  call.inputs = {op.getInput()};
  what.dtype = codeOf(op.getInput());
  what.outer = countOf(shape.take_front(dim));
  what.size = from.size;
  what.padded = shape[dim];
  what.inner = countOf(shape.drop_front(dim + 1));
  what.from_order = int64_t(from.order);
  what.from_ranks = from.orderRanks;
  what.to_order = int64_t(to.order);
  what.to_ranks = to.orderRanks;
  return success();
}

static LogicalResult describePlace(dist::PlaceOp op, mw_rt_place &what, RuntimeCall &call) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  dist::AxisList axes = dist::getAxes(op.getAxes(), *mesh);
  if (failed(setAxes(op, axes, what.axes)))
    return failure();
  ArrayRef<int64_t> shape = shapeOf(op.getChunks().front());
  int64_t dim = op.getDim();
  call.inputs.assign(op->operand_begin(), op->operand_end());
  what.dtype = codeOf(op.getResult());
  what.outer = countOf(shape.take_front(dim));
  what.rows = shape[dim];
  what.inner = countOf(shape.drop_front(dim + 1));
  what.count = op.getChunks().size();
  llvm::append_range(call.descriptor, op.getWrappedShifts(dist::getNumShards(axes)));
  return success();
}

static LogicalResult describePositions(dist::PositionsOp op, mw_rt_positions &what,
                                       RuntimeCall &call) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh))
    return failure();
  dist::LayoutFactor factor = dist::getFactor(op, *mesh);
  what.size = factor.size;
  what.padded = factor.padded;
  what.order = int64_t(factor.order);
  what.order_ranks = factor.orderRanks;
  what.shift = factor.shift;
  what.has_size = bool(op.getSize());
  if (op.getSize())
    call.inputs = {op.getSize()};
  return setAxes(op, factor.axes, what.axes);
}

static LogicalResult describeLargest(dist::LargestOp op, mw_rt_largest &what, RuntimeCall &call) {
  call.inputs = {op.getInput()};
  what.dtype = codeOf(op.getInput());
  what.count = countOf(shapeOf(op.getInput()));
  return success();
}

static LogicalResult describeEncode(dist::EncodeOp op, mw_rt_encode &what, RuntimeCall &call) {
  if (op.getForm().getKind() == GatherKind::Nvfp4 && !op.getLargest())
    return op.emitOpError("expected the largest magnitude of the weight, got none: only a parameter "
                          "that is encoded at load needs none");
  call.inputs = {op.getInput(), op.getLargest()};
  what.dtype = codeOf(op.getInput());
  what.form = getFormCall(op.getResult().getType());
  return success();
}

static LogicalResult describeDecode(dist::DecodeOp op, mw_rt_decode &what, RuntimeCall &call) {
  call.inputs = {op.getInput()};
  what.dtype = codeOf(op.getResult());
  what.form = getFormCall(op);
  return success();
}

/// A number of the counts, which no op of a call changes: that of the function's argument. -1 for other values.
static int64_t getSourceNumber(Value counts) {
  auto argument = dyn_cast<BlockArgument>(rt::getSource(counts));
  return argument && isa<FunctionOpInterface>(argument.getOwner()->getParentOp()) ? argument.getArgNumber()
                                                                                  : -1;
}

/// The sizes of rows of groups around a dimension: their number there, and that of true rows.
static mw_rt_counted_rows getCounted(Value rows, Value counts, int64_t dim, int64_t tokens, int64_t capacity) {
  ArrayRef<int64_t> shape = shapeOf(rows);
  mw_rt_counted_rows what = {};
  what.dtype = codeOf(rows);
  what.outer = countOf(shape.take_front(dim));
  what.inner = countOf(shape.drop_front(dim + 1));
  what.replicas = 1;
  what.groups = shapeOf(counts)[0];
  what.tokens = tokens;
  what.capacity = capacity;
  what.source = getSourceNumber(counts);
  return what;
}

template <typename Op>
static void describeCounted(Op op, Value ofReplicas, mw_rt_counted_rows &what, RuntimeCall &call) {
  call.inputs = {op.getInput(), op.getCounts()};
  what = getCounted(ofReplicas, op.getCounts(), op.getDim(), op.getTokens(), op.getRows());
  what.replicas = shapeOf(ofReplicas)[op.getDim()] / what.capacity;
  what.groups /= what.replicas;
}

static LogicalResult describeCompact(dist::CompactOp op, mw_rt_compact &what, RuntimeCall &call) {
  describeCounted(op, op.getResult(), what.rows, call);
  return success();
}

static LogicalResult describeExpand(dist::ExpandOp op, mw_rt_expand &what, RuntimeCall &call) {
  describeCounted(op, op.getInput(), what.rows, call);
  return success();
}

/// A collective of one pair of rows and numbers. `part` has the rows of one rank.
template <typename Op>
static LogicalResult describeExchanged(Op op, Value part, mw_rt_exchanged_rows &what, RuntimeCall &call) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh) || failed(setAxes(op, dist::getAxes(op.getAxes(), *mesh), what.group.group)))
    return failure();
  if (op->getNumOperands() != 2)
    return op.emitOpError("expected the rows of one value, got several");
  int64_t dim = op.getDims()[0];
  call.inputs.assign(op->operand_begin(), op->operand_end());
  what.group.kind = MW_RT_ALL_TO_ALL;
  what.rows = getCounted(part, op->getOperand(1), dim, op.getTokens(), op.getRows());
  what.own = shapeOf(part)[dim];
  return success();
}

static LogicalResult describeAllGatherV(dist::AllGatherVOp op, mw_rt_all_gather_v &what, RuntimeCall &call) {
  return describeExchanged(op, op->getOperand(0), what.what, call);
}

static LogicalResult describeReduceScatterV(dist::ReduceScatterVOp op, mw_rt_reduce_scatter_v &what,
                                            RuntimeCall &call) {
  what.what.group.reduction = op.getReduction() == dist::ReductionKind::Max ? MW_RT_MAX : MW_RT_SUM;
  return describeExchanged(op, op->getResult(0), what.what, call);
}

void addDistCalls(CallModels &models) {
  models.add(describeMask);
  models.add(describeAxisIndex);
  models.add(describeReorder);
  models.add(describePlace);
  models.add(describePositions);
  models.add(describeLargest);
  models.add(describeEncode);
  models.add(describeDecode);
  models.add(describeCompact);
  models.add(describeExpand);
  models.add(describeAllGatherV);
  models.add(describeReduceScatterV);
}

} // namespace meshwright::lower

//===- NnCalls.cpp - calls that perform ops of nn -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/CallModels.h"

#include "meshwright/dialects/Nn/TableRows.h"

#include <iterator>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

static LogicalResult describeLinear(nn::LinearOp op, mw_rt_gemm &what, RuntimeCall &call) {
  ArrayRef<int64_t> input = shapeOf(op.getInput()), weight = shapeOf(op.getWeight());
  call.inputs = {op.getInput(), op.getWeight(), op.getBias()};
  if (auto decode = op.getWeight().getDefiningOp<dist::DecodeOp>()) {
    call.inputs[1] = decode.getInput();
    what.form = getFormCall(decode);
  }
  what.dtype = codeOf(op.getInput());
  what.result = codeOf(op.getResult());
  what.m = countOf(input.drop_back());
  what.n = weight[op.getInOut() ? 1 : 0];
  what.k = input.back();
  what.transpose_b = !op.getInOut();
  return success();
}

/// Sets, for each dimension of the batch, how many matrices the operand advances: 0 where it is
/// stretched.
static void setBatchStrides(ArrayRef<int64_t> batch, ArrayRef<int64_t> operand, int64_t *strides) {
  int64_t stride = 1;
  for (size_t i = 0; i < operand.size(); ++i) {
    int64_t size = operand[operand.size() - 1 - i];
    strides[batch.size() - 1 - i] = size == 1 ? 0 : stride;
    stride *= size;
  }
}

static LogicalResult describeMatmul(nn::MatmulOp op, mw_rt_gemm &what, RuntimeCall &call) {
  ArrayRef<int64_t> lhs = shapeOf(op.getLhs()), rhs = shapeOf(op.getRhs());
  ArrayRef<int64_t> result = shapeOf(op.getResult()), batch = result.drop_back(2);
  if (failed(checkRank(op, batch.size())))
    return failure();
  call.inputs = {op.getLhs(), op.getRhs(), Value()};
  what.dtype = codeOf(op.getLhs());
  what.result = codeOf(op.getResult());
  what.m = result[result.size() - 2];
  what.n = result.back();
  what.k = lhs[lhs.size() - (op.getTransposeLhs() ? 2 : 1)];
  what.transpose_a = op.getTransposeLhs();
  what.transpose_b = op.getTransposeRhs();
  what.batch_rank = batch.size();
  llvm::copy(batch, what.batch);
  setBatchStrides(batch, lhs.drop_back(2), what.stride_a);
  setBatchStrides(batch, rhs.drop_back(2), what.stride_b);
  return success();
}

static LogicalResult describeWeightGrad(nn::WeightGradOp op, mw_rt_weight_grad &what,
                                        RuntimeCall &call) {
  ArrayRef<int64_t> lhs = shapeOf(op.getLhs());
  call.inputs = {op.getLhs(), op.getRhs()};
  what.dtype = codeOf(op.getLhs());
  what.rows = countOf(lhs.drop_back());
  what.m = lhs.back();
  what.n = shapeOf(op.getRhs()).back();
  return success();
}

//===----------------------------------------------------------------------===//
// Weights of codes
//===----------------------------------------------------------------------===//

/// Describes matrices of codes. The verifier and `mayReadCodes` say which there are.
static mw_rt_codes getCodes(nn::DequantizeOp op) {
  SmallVector<int64_t> shape = op.getCodeShape(), block = op.getBlockSizes();
  size_t rank = shape.size();
  mw_rt_codes codes = {};
  codes.codes = op.getPacked() ? int64_t(MW_F4E2M1FN) : codeOf(op.getCodes());
  codes.scales = codeOf(op.getScales());
  codes.matrices = countOf(ArrayRef(shape).drop_back(2));
  codes.rows = shape[rank - 2];
  codes.columns = shape[rank - 1];
  codes.block_rows = std::max<int64_t>(std::min(block[rank - 2], codes.rows), 1);
  codes.block_columns = std::max<int64_t>(std::min(block[rank - 1], codes.columns), 1);
  return codes;
}

bool isCodedMatrix(nn::DequantizeOp op) {
  SmallVector<int64_t> block = op.getBlockSizes();
  Type type = elementOf(op.getResult());
  return block.size() >= 2 && !op.getWhole() && !op.getTable() && !type.isF64() &&
         llvm::all_of(ArrayRef(block).drop_back(2), [](int64_t size) { return size == 1; });
}

bool mayReadCodes(OpOperand &use) {
  Operation *op = use.getOwner();
  if (auto linear = dyn_cast<nn::LinearOp>(op))
    return &use == &linear.getWeightMutable() && linear.getInput() != use.get();
  auto grouped = dyn_cast<nn::GroupedProductOp>(op);
  return grouped && &use == &grouped.getWeightMutable() && grouped.getRows() != use.get();
}

static LogicalResult describeDequantize(nn::DequantizeOp op, mw_rt_dequantize &what,
                                        RuntimeCall &call) {
  if (!isCodedMatrix(op))
    return op.emitOpError("cannot be performed by a call: expected matrices of codes with scales alone");
  call.inputs = {op.getCodes(), op.getScales()};
  what.dtype = codeOf(op.getResult());
  what.codes = getCodes(op);
  return success();
}

/// The product of rows and a weight of codes. `inputs` are the optional ones: the bias and the offsets.
static LogicalResult describeCodedProduct(Value rows, Value weight, Value result, bool inOut,
                                          ArrayRef<Value> inputs, mw_rt_coded_product &what,
                                          RuntimeCall &call) {
  auto codes = weight.getDefiningOp<nn::DequantizeOp>();
  ArrayRef<int64_t> shape = shapeOf(rows);
  call.inputs = {rows, codes.getCodes(), codes.getScales()};
  llvm::append_range(call.inputs, inputs);
  what.dtype = codeOf(rows);
  what.result = codeOf(result);
  what.count = countOf(shape.drop_back());
  what.n = shapeOf(result).back();
  what.k = shape.back();
  what.transpose_b = !inOut;
  what.codes = getCodes(codes);
  return success();
}

static LogicalResult describeCodedLinear(nn::LinearOp op, mw_rt_coded_product &what,
                                         RuntimeCall &call) {
  return describeCodedProduct(op.getInput(), op.getWeight(), op.getResult(), op.getInOut(),
                              {op.getBias(), Value()}, what, call);
}

static LogicalResult describeCodedGroups(nn::GroupedProductOp op, mw_rt_coded_product &what,
                                         RuntimeCall &call) {
  return describeCodedProduct(op.getRows(), op.getWeight(), op.getResult(), op.getInOut(),
                              {Value(), op.getOffsets()}, what, call);
}

//===----------------------------------------------------------------------===//
// Rows and elements by index
//===----------------------------------------------------------------------===//

/// The rows of the whole table that indices count. Without a known number each index is in range.
static int64_t getTotalRows(dist::LookupOpInterface op) {
  return nn::getTableRows(op).value_or(std::numeric_limits<int64_t>::max());
}

static LogicalResult describeEmbedding(nn::EmbeddingOp op, mw_rt_gather &what, RuntimeCall &call) {
  ArrayRef<int64_t> table = shapeOf(op.getTable());
  call.inputs = {op.getTable(), op.getIds(), op.getOffset()};
  what.dtype = codeOf(op.getTable());
  what.index_dtype = codeOf(op.getIds());
  if (op.getOffset())
    what.offset_dtype = codeOf(op.getOffset());
  what.outer = 1;
  what.size = table[0];
  what.inner = table[1];
  what.count = countOf(shapeOf(op.getIds()));
  what.total = getTotalRows(op);
  return success();
}

static LogicalResult describeGather(nn::GatherOp op, mw_rt_gather &what, RuntimeCall &call) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  call.inputs = {op.getData(), op.getIndices(), Value()};
  what.dtype = codeOf(op.getData());
  what.index_dtype = codeOf(op.getIndices());
  what.outer = countOf(data.take_front(dim));
  what.size = what.total = data[dim];
  what.inner = countOf(data.drop_front(dim + 1));
  what.count = countOf(shapeOf(op.getIndices()));
  return success();
}

static LogicalResult describeTakeAlong(nn::TakeAlongOp op, mw_rt_take_along &what,
                                       RuntimeCall &call) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  call.inputs = {op.getData(), op.getIndices()};
  what.dtype = codeOf(op.getData());
  what.index_dtype = codeOf(op.getIndices());
  what.outer = countOf(data.take_front(dim));
  what.size = data[dim];
  what.inner = countOf(data.drop_front(dim + 1));
  what.count = shapeOf(op.getIndices())[dim];
  return success();
}

static LogicalResult describeIndexCopy(nn::IndexCopyOp op, mw_rt_index_copy &what,
                                       RuntimeCall &call) {
  ArrayRef<int64_t> data = shapeOf(op.getData());
  int64_t dim = op.getDim();
  call.inputs = {op.getData(), op.getIndices(), op.getSource()};
  ArrayRef<int64_t> indices = shapeOf(op.getIndices());
  if (int64_t batch = countOf(indices.drop_back()); batch != 1)
    return op.emitOpError() << "expected indices of one batch on a rank, got " << batch;
  what.rows.dtype = codeOf(op.getData());
  what.rows.index_dtype = codeOf(op.getIndices());
  what.rows.outer = countOf(data.take_front(dim));
  what.rows.size = data[dim];
  what.rows.inner = countOf(data.drop_front(dim + 1));
  what.rows.count = indices.back();
  what.rows.skips = op.getSkipsMinusOne();
  return success();
}

static LogicalResult describeScatterAdd(nn::ScatterAddOp op, mw_rt_scatter_add &what,
                                        RuntimeCall &call) {
  ArrayRef<int64_t> updates = shapeOf(op.getUpdates());
  int64_t dim = op.getDim(), count = op.getNumIndexedDims();
  call.inputs = {op.getUpdates(), op.getIndices(), op.getOffset()};
  what.dtype = codeOf(op.getUpdates());
  what.index_dtype = codeOf(op.getIndices());
  if (op.getOffset())
    what.offset_dtype = codeOf(op.getOffset());
  what.outer = countOf(updates.take_front(dim));
  what.size = shapeOf(op.getResult())[dim];
  what.inner = countOf(updates.drop_front(dim + count));
  what.count = countOf(updates.slice(dim, count));
  what.along = op.getAlong();
  what.total = getTotalRows(op);
  return success();
}

//===----------------------------------------------------------------------===//
// Rows of experts
//===----------------------------------------------------------------------===//

static LogicalResult describeTopK(nn::TopKOp op, mw_rt_top_k &what, RuntimeCall &call) {
  ArrayRef<int64_t> shape = shapeOf(op.getScores());
  call.inputs = {op.getScores()};
  what.dtype = codeOf(op.getScores());
  what.rows = countOf(shape.drop_back());
  what.size = shape.back();
  what.k = op.getK();
  return success();
}

static LogicalResult describeLimit(nn::LimitOp op, mw_rt_limit &what, RuntimeCall &call) {
  call.inputs = {op.getIndices()};
  what.dtype = codeOf(op.getIndices());
  what.choices = countOf(shapeOf(op.getIndices()));
  what.capacity = op.getCapacity();
  what.layer = op.getLayer().value_or(-1);
  return success();
}

static LogicalResult describeRoute(nn::RouteOp op, mw_rt_route &what, RuntimeCall &call) {
  ArrayRef<int64_t> shape = shapeOf(op.getIndices());
  call.inputs = {op.getIndices(), op.getOffset(), op.getRows()};
  what.index_dtype = codeOf(op.getIndices());
  if (op.getOffset())
    what.offset_dtype = codeOf(op.getOffset());
  if (op.getRows())
    what.outer = shapeOf(op.getRows()).front() - 1;
  what.tokens = countOf(shape.drop_back());
  what.choices = shape.back();
  what.experts = op.getExperts();
  what.total = op.getTotal().value_or(op.getExperts());
  what.shared = op.getShared().value_or(1);
  what.capacity = shapeOf(op.getChoices()).front();
  what.layer = op.getLayer().value_or(-1);
  return success();
}

std::optional<RuntimeCall> getNote(Operation *op) {
  RuntimeCall call;
  if (auto route = dyn_cast<nn::RouteOp>(op); route && route.getLayer()) {
    mw_rt_note_rows what = {};
    what.call.kind = MW_RT_CALL_NOTE_ROWS;
    what.experts = route.getExperts();
    what.layer = *route.getLayer();
    if (route.getOffset())
      what.offset_dtype = codeOf(route.getOffset());
    call.inputs = {route.getOffsets(), route.getOffset()};
    append(call.descriptor, what);
    return call;
  }
  if (auto limit = dyn_cast<nn::LimitOp>(op); limit && limit.getLayer()) {
    mw_rt_note_dropped what = {};
    what.call.kind = MW_RT_CALL_NOTE_DROPPED;
    what.dtype = codeOf(limit.getIndices());
    what.choices = countOf(shapeOf(limit.getIndices()));
    what.layer = *limit.getLayer();
    call.inputs = {limit.getIndices(), limit.getResult()};
    append(call.descriptor, what);
    return call;
  }
  return std::nullopt;
}

static LogicalResult describeTakeRows(nn::TakeRowsOp op, mw_rt_take_rows &what, RuntimeCall &call) {
  call.inputs = {op.getInput(), op.getChoices()};
  what.dtype = codeOf(op.getInput());
  what.rows = shapeOf(op.getChoices()).front();
  what.inner = countOf(shapeOf(op.getResult()).drop_front());
  what.group = op.getEach() ? 1 : op.getGroup();
  return success();
}

static LogicalResult describeSumRows(nn::SumRowsOp op, mw_rt_sum_rows &what, RuntimeCall &call) {
  ArrayRef<int64_t> places = shapeOf(op.getPlaces());
  call.inputs = {op.getRows(), op.getPlaces()};
  what.dtype = codeOf(op.getRows());
  what.tokens = countOf(op.getEach() ? places : places.drop_back());
  what.choices = op.getEach() ? 1 : places.back();
  what.inner = countOf(shapeOf(op.getRows()).drop_front());
  return success();
}

static LogicalResult describeRepeatRows(nn::RepeatRowsOp op, mw_rt_repeat_rows &what,
                                        RuntimeCall &call) {
  ArrayRef<int64_t> shape = shapeOf(op.getResult());
  call.inputs = {op.getTable(), op.getOffsets()};
  what.dtype = codeOf(op.getTable());
  what.experts = shapeOf(op.getTable()).front();
  what.rows = shape.front();
  what.inner = countOf(shape.drop_front());
  return success();
}

static LogicalResult describeSumGroups(nn::SumGroupsOp op, mw_rt_sum_groups &what, RuntimeCall &call) {
  ArrayRef<int64_t> shape = shapeOf(op.getResult());
  call.inputs = {op.getRows(), op.getOffsets()};
  what.dtype = codeOf(op.getRows());
  what.result = codeOf(op.getResult());
  what.experts = shape.front();
  what.inner = countOf(shape.drop_front());
  return success();
}

static LogicalResult describeGroupedProduct(nn::GroupedProductOp op, mw_rt_grouped_product &what,
                                            RuntimeCall &call) {
  ArrayRef<int64_t> rows = shapeOf(op.getRows()), result = shapeOf(op.getResult());
  call.inputs = {op.getRows(), op.getWeight(), op.getOffsets()};
  what.dtype = codeOf(op.getRows());
  what.result = codeOf(op.getResult());
  what.rows = rows.front();
  what.experts = shapeOf(op.getWeight()).front();
  what.n = result.back();
  what.k = rows.back();
  what.transpose_b = !op.getInOut();
  return success();
}

static LogicalResult describeGroupedOuter(nn::GroupedOuterOp op, mw_rt_grouped_outer &what,
                                          RuntimeCall &call) {
  call.inputs = {op.getLhs(), op.getRhs(), op.getOffsets()};
  what.dtype = codeOf(op.getLhs());
  what.rows = shapeOf(op.getLhs()).front();
  what.experts = shapeOf(op.getResult()).front();
  what.m = shapeOf(op.getLhs()).back();
  what.n = shapeOf(op.getRhs()).back();
  return success();
}

/// A number of the rows that offsets count: rows of other offsets may be others. -1 for arguments.
static int64_t getRouting(Value offsets) {
  Operation *source = rt::getSource(offsets).getDefiningOp();
  if (!source)
    return -1;
  while (isa<rt::KernelOp, rt::StartOp>(source->getParentOp()))
    source = source->getParentOp();
  return std::distance(source->getBlock()->begin(), source->getIterator());
}

static LogicalResult describeMoved(Operation *op, ArrayAttr axes, Value rows, Value result, Value offsets,
                                   mw_rt_moved_rows &what) {
  FailureOr<dist::MeshAttr> mesh = getMesh(op);
  if (failed(mesh) || failed(setAxes(op, dist::getAxes(axes, *mesh), what.group.group)))
    return failure();
  what.group.kind = MW_RT_ALL_TO_ALL;
  what.dtype = codeOf(rows);
  what.inner = countOf(shapeOf(rows).drop_front());
  what.from_capacity = shapeOf(rows).front();
  what.to_capacity = shapeOf(result).front();
  what.routing = getRouting(offsets);
  return success();
}

static LogicalResult describeSendRows(nn::SendRowsOp op, mw_rt_send_rows &what, RuntimeCall &call) {
  call.inputs = {op.getRows(), op.getOffsets()};
  what.what.experts = shapeOf(op.getOffsets()).front() - 1;
  what.what.own = shapeOf(op.getOwn()).front() - 1;
  what.what.layer = op.getLayer().value_or(-1);
  return describeMoved(op, op.getAxes(), op.getRows(), op.getResult(), op.getOffsets(), what.what);
}

static LogicalResult describeReturnRows(nn::ReturnRowsOp op, mw_rt_return_rows &what,
                                        RuntimeCall &call) {
  call.inputs = {op.getRows(), op.getParts(), op.getOffsets()};
  if (failed(describeMoved(op, op.getAxes(), op.getRows(), op.getResult(), op.getOffsets(), what.what)))
    return failure();
  int64_t ranks = 1;
  for (int64_t i = 0; i < what.what.group.group.count; ++i)
    ranks *= what.what.group.group.axes[i].size;
  what.what.experts = shapeOf(op.getOffsets()).front() - 1;
  what.what.own = (shapeOf(op.getParts()).front() - 1) / ranks;
  return success();
}

void addNnCalls(CallModels &models) {
  models.add(describeLinear);
  models.add(describeMatmul);
  models.add(describeWeightGrad);
  models.add(describeEmbedding);
  models.add(describeGather);
  models.add(describeTakeAlong);
  models.add(describeIndexCopy);
  models.add(describeDequantize);
  models.add(describeCodedLinear, CallModels::Weights::Codes);
  models.add(describeCodedGroups, CallModels::Weights::Codes);
  models.add(describeScatterAdd);
  models.add(describeTopK);
  models.add(describeLimit);
  models.add(describeRoute);
  models.add(describeTakeRows);
  models.add(describeSumRows);
  models.add(describeRepeatRows);
  models.add(describeSumGroups);
  models.add(describeGroupedProduct);
  models.add(describeGroupedOuter);
  models.add(describeSendRows);
  models.add(describeReturnRows);
}

} // namespace meshwright::lower

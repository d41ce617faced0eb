//===- PagedShape.cpp - attention to pages, as kernels see it -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/PagedShape.h"

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;

namespace meshwright::lower {

PagedShape::PagedShape(nn::PagedAttentionOp op) {
  ArrayRef<int64_t> query = shapeOf(op.getQuery()), keys = shapeOf(op.getKeys());
  ArrayRef<int64_t> tables = shapeOf(op.getTables());
  groups = query[0];
  tokens = query[1];
  queryHeads = query[2];
  features = query[3];
  pages = keys[1];
  pageSize = keys[2];
  keyHeads = keys[3];
  valueStride = shapeOf(op.getValues())[4];
  valueFeatures = shapeOf(op.getResult()).back();
  ranks = op.getDeals() ? tables[1] : 1;
  requests = tables[tables.size() - 2];
  blocks = tables.back();
  deal = op.getDeal().value_or(1);
  parts = op.getParts().value_or(1);
  if (op.getWindowLeft() && int64_t(*op.getWindowLeft()) < getKeys() * deal)
    left = *op.getWindowLeft();
  sharesPages = op.getKeys() == op.getValues();
  biasByPosition = op.getDistances() && shapeOf(op.getDistances()).size() == 3;
  element = elementOf(op.getQuery());
  compute = getComputeType(element);
}

int64_t PagedShape::getFlops() const {
  return groups * tokens * queryHeads * getKeys() * ranks * (features + valueFeatures);
}

int64_t PagedShape::getBytes() const {
  int64_t width = element.getIntOrFloatBitWidth() / 8, perKey = features + valueFeatures;
  int64_t keysOfRequest = getKeys() * ranks / 2;
  return width * groups *
         (std::min(requests, tokens) * keysOfRequest * keyHeads * perKey + tokens * queryHeads * perKey);
}

SmallVector<PagedBuffers::Member> PagedBuffers::getInputs(nn::PagedAttentionOp op) {
  SmallVector<Member> buffers{{op.getQuery(), &query}, {op.getKeys(), &keys}};
  if (op.getKeys() != op.getValues())
    buffers.push_back({op.getValues(), &values});
  buffers.append({{op.getTables(), &tables}, {op.getStarts(), &starts}, {op.getLengths(), &lengths}});
  for (auto [value, buffer] : {Member(op.getDeals(), &deals), Member(op.getSlopes(), &slopes),
                               Member(op.getSinks(), &sinks), Member(op.getDistances(), &distances)})
    if (value)
      buffers.push_back({value, buffer});
  return buffers;
}

SmallVector<PagedBuffers::Member> PagedBuffers::getOutputs(nn::PagedAttentionOp op) {
  SmallVector<Member> buffers{{op.getResult(), &result}};
  if (op.getLse())
    buffers.push_back({op.getLse(), &lse});
  return buffers;
}

unsigned PagedBuffers::bind(nn::PagedAttentionOp op, Block &entry) {
  unsigned next = 0;
  for (const SmallVector<Member> &members : {getInputs(op), getOutputs(op)})
    for (auto [value, buffer] : members)
      *buffer = entry.getArgument(next++);
  if (!values)
    values = keys;
  return next;
}

Value emitCheckedTables(OpBuilder &builder, nn::PagedAttentionOp op) {
  nn::Writer w(builder, op.getLoc());
  Type number = builder.getI64Type();
  RankedTensorType type = typeOf(op.getTables());
  ArrayRef<int64_t> shape = shapeOf(op.getTables());
  int64_t ranks = op.getDeals() ? shape[1] : 1;
  Value all = w.iota(0, RankedTensorType::get({shapeOf(op.getKeys())[1] / ranks}, number));
  Value ids = w.reshape(w.binary<nn::MaximumOp>(op.getTables(), w.number(0, number)), {type.getNumElements()});
  Value checked = nn::GatherOp::create(builder, op.getLoc(), typeOf(ids), all, ids, 0);
  return w.reshape(checked, shape);
}

} // namespace meshwright::lower

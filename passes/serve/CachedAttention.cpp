//===- CachedAttention.cpp - attention that reads a cache -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/CachedAttention.h"

#include "meshwright/lib/Support/ElementTypes.h"

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;
using nn::Writer;

/// Pages [groups, pages, ...] with the rows of the step's tokens. Dealt pages are as many groups of
/// pages as there are ranges. A token's row is in one of them, and the others skip it.
static Value writeRows(Writer &w, Value pages, Value rows, Value slots, int64_t deal) {
  OpBuilder &builder = w.getBuilder();
  if (deal == 1)
    return nn::PageWriteOp::create(builder, w.getLoc(), pages.getType(), pages, rows, slots);
  SmallVector<int64_t> whole(shapeOf(pages)), shape(whole), of(shapeOf(rows));
  int64_t groups = whole[0], range = whole[1] / deal, tokens = of[1];
  shape[0] = groups * deal;
  shape[1] = range;
  auto number = builder.getI64Type();
  // The slots of a range follow one another.
  Value begin = w.iota(1, RankedTensorType::get({1, deal, 1}, number));
  begin = w.mul(begin, w.number(double(range * whole[2]), number));
  Value own = w.sub(w.reshape(slots, {groups, 1, tokens}), begin);
  Value isIn = w.binary<nn::AndOp>(w.compare(nn::CompareKind::Ge, own, 0),
                                   w.compare(nn::CompareKind::Lt, own, double(range * whole[2])));
  own = w.select(isIn, own, w.number(-1, number));
  Value copies = w.broadcast(w.reshape(rows, {groups, 1, tokens, of[2], of[3]}),
                             {groups, deal, tokens, of[2], of[3]});
  Value written = nn::PageWriteOp::create(builder, w.getLoc(), typeOf(pages).clone(shape),
                                          w.reshape(pages, shape),
                                          w.reshape(copies, {groups * deal, tokens, of[2], of[3]}),
                                          w.reshape(own, {groups * deal, tokens}));
  return w.reshape(written, whole);
}

/// The pages of a state, behind the write of the step's rows.
static Value writePages(Writer &w, const std::string &name, Value rows, Value slots,
                        const ServingSizes &sizes) {
  OpBuilder &builder = w.getBuilder();
  ArrayRef<int64_t> shape = shapeOf(rows);
  RankedTensorType type =
      typeOf(rows).clone({sizes.groups, sizes.pages, sizes.pageSize, shape[2], shape[3]});
  auto func = cast<func::FuncOp>(builder.getInsertionBlock()->getParentOp());
  if (!func->getParentOfType<ModuleOp>().lookupSymbol(name)) {
    OpBuilder outside(func);
    nn::StateOp::create(outside, w.getLoc(), name, type, StringAttr(),
                        builder.getFloatAttr(type.getElementType(), 0),
                        builder.getStringAttr("cache"));
  }
  Value before = nn::ReadOp::create(builder, w.getLoc(), type, name);
  Value after = writeRows(w, before, rows, slots, sizes.deal);
  nn::WriteOp::create(builder, w.getLoc(), name, after);
  return after;
}

std::pair<Value, Value> meshwright::writeCachedAttention(Writer &w, nn::AttentionOp op, Value query,
                                                         Value keys, Value values, const CachedBias &bias,
                                                         StringRef name, const CacheInputs &inputs,
                                                         const ServingSizes &sizes) {
  OpBuilder &builder = w.getBuilder();
  int64_t deal = sizes.deal;
  Value keyPages =
      writePages(w, (name + (values ? ".keys" : ".latent")).str(), keys, inputs.slots, sizes);
  Value valuePages =
      values ? writePages(w, (name + ".values").str(), values, inputs.slots, sizes) : keyPages;
  SmallVector<int64_t> shape(shapeOf(query));
  shape[3] = shapeOf(op.getValue())[3];
  RankedTensorType type = typeOf(query).clone(shape), partType = type, lseType;
  if (op.getLse())
    lseType = RankedTensorType::get(ArrayRef(shape).drop_back(), elementOf(op.getLse()));
  RankedTensorType wholeLseType = lseType;
  Value deals;
  if (deal > 1) {
    Type wide = getComputeType(type.getElementType());
    shape.insert(shape.begin() + 1, deal);
    partType = RankedTensorType::get(shape, wide);
    lseType = RankedTensorType::get(ArrayRef(shape).drop_back(), wide);
    deals = w.iota(0, RankedTensorType::get({deal}, builder.getI64Type()));
  }
  auto made = nn::PagedAttentionOp::create(
      builder, w.getLoc(), partType, lseType, query, keyPages, valuePages, inputs.tables,
      inputs.starts, inputs.lengths, deals, bias.slopes, /*sinks=*/Value(), bias.distances,
      op.getScaleAttr(), op.getWindowLeftAttr(), op.getSoftCapAttr(),
      deal > 1 ? builder.getI64IntegerAttr(deal) : IntegerAttr(), /*parts=*/IntegerAttr());
  if (Attribute id = op->getAttr(NnDialect::kIdAttr))
    made->setAttr(NnDialect::kIdAttr, id);
  if (deal == 1)
    return {made.getResult(), made.getLse()};
  auto merged = nn::MergePartsOp::create(builder, w.getLoc(), type, wholeLseType, made.getResult(),
                                         made.getLse(), /*sinks=*/Value());
  return {merged.getResult(), merged.getLse()};
}

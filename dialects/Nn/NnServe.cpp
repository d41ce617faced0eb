//===- NnServe.cpp - caches in pages --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/TensorValues.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;
using dist::FactorKind;
using dist::FactorRule;
using ValueFactors = FactorRule::ValueFactors;

//===----------------------------------------------------------------------===//
// nn.page_write
//===----------------------------------------------------------------------===//

/// Checks that
///  - pages are [groups, pages, page size, heads, features], rows [groups, tokens, heads, features]
///    and slots [groups, tokens];
///  - rows and result have the element type of the pages, and the result has their shape.
LogicalResult PageWriteOp::verify() {
  Shape pages = shapeOf(getPages()), slots = shapeOf(getSlots());
  if (failed(verifyRank(*this, "pages", getPages(), 5)) || failed(verifyRank(*this, "slots", getSlots(), 2)) ||
      failed(verifyElementType(*this, "rows", getRows(), "pages", getPages())) ||
      failed(verifyElementType(*this, "result", getResult(), "pages", getPages())) ||
      failed(verifyShape(*this, "result", getResult(), pages)))
    return failure();
  if (slots[0] != pages[0])
    return emitOpError() << "expected slots of " << pages[0] << " groups as pages, got " << slots[0];
  return verifyShape(*this, "rows", getRows(), {pages[0], slots[1], pages[3], pages[4]});
}

FactorRule PageWriteOp::getFactorRule() {
  FactorRule rule;
  Shape shape = shapeOf(getPages());
  int groups = rule.addFactor(shape[0]), pages = rule.addFactor(shape[1], FactorKind::Special);
  int rows = rule.addFactor(shape[2], FactorKind::Special);
  int heads = rule.addFactor(shape[3]), features = rule.addFactor(shape[4]);
  int tokens = rule.addFactor(shapeOf(getSlots())[1], FactorKind::Special);
  ValueFactors cache = {{groups}, {pages}, {rows}, {heads}, {features}};
  rule.operands = {cache, {{groups}, {tokens}, {heads}, {features}}, {{groups}, {tokens}}};
  rule.results = {cache};
  return rule;
}

Padding PageWriteOp::getResultPadding(const Operands &in) { return meet(in[0], in[1]); }

SmallVector<int64_t, 2> PageWriteOp::getExpandedDims() { return {1, 2}; }
int64_t PageWriteOp::getNumStatistics() { return 1; }
bool PageWriteOp::needsExpansion() { return true; }

Value PageWriteOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Shape pages = shapeOf(getPages());
  if (pages[0] != 1)
    return {};
  int64_t tokens = shapeOf(getSlots())[1];
  Value rows = w.reshape(getPages(), {pages[1] * pages[2], pages[3], pages[4]});
  auto written = IndexCopyOp::create(builder, getLoc(), rows.getType(), rows, w.reshape(getSlots(), {tokens}),
                                     w.reshape(getRows(), {tokens, pages[3], pages[4]}), 0,
                                     /*skips_minus_one=*/true);
  return w.reshape(written.getResult(), pages);
}

//===----------------------------------------------------------------------===//
// nn.paged_attention
//===----------------------------------------------------------------------===//

/// Checks that
///  - the query is [groups, tokens, q_heads, d], keys are [groups, pages, page size, kv_heads, d], and
///    values [groups, pages, page size, kv_heads, dv], of one element type;
///  - q_heads are a multiple of kv_heads;
///  - tables are [groups, requests, blocks], starts [groups, requests + 1] and lengths
///    [groups, requests];
///  - slopes and sinks are [q_heads];
///  - the window is not negative, and the cap positive.
LogicalResult PagedAttentionOp::verify() {
  if (failed(verifyRank(*this, "query", getQuery(), 4)) || failed(verifyRank(*this, "keys", getKeys(), 5)) ||
      failed(verifyRank(*this, "values", getValues(), 5)) || failed(verifyRank(*this, "tables", getTables(), 3)) ||
      failed(verifyElementType(*this, "keys", getKeys(), "query", getQuery())) ||
      failed(verifyElementType(*this, "values", getValues(), "query", getQuery())) ||
      failed(verifyElementType(*this, "result", getResult(), "query", getQuery())))
    return failure();
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), values = shapeOf(getValues());
  Shape tables = shapeOf(getTables());
  if (failed(verifyShape(*this, "keys", getKeys(), {query[0], keys[1], keys[2], keys[3], query[3]})) ||
      failed(verifyShape(*this, "values", getValues(), {keys[0], keys[1], keys[2], keys[3], values[4]})) ||
      failed(verifyShape(*this, "tables", getTables(), {query[0], tables[1], tables[2]})) ||
      failed(verifyShape(*this, "starts", getStarts(), {query[0], tables[1] + 1})) ||
      failed(verifyShape(*this, "lengths", getLengths(), {query[0], tables[1]})) ||
      failed(verifyShape(*this, "result", getResult(), {query[0], query[1], query[2], values[4]})))
    return failure();
  if (keys[3] == 0 || query[2] % keys[3] != 0)
    return emitOpError() << "expected a multiple of the " << keys[3] << " heads of keys as heads of the query, got "
                         << query[2];
  for (auto [name, value] : {std::pair("slopes", getSlopes()), std::pair("sinks", getSinks())})
    if (value && failed(verifyShape(*this, name, value, {query[2]})))
      return failure();
  if (getWindowLeft() && int64_t(*getWindowLeft()) < 0)
    return emitOpError() << "expected a window that is not negative, got " << int64_t(*getWindowLeft());
  if (getSoftCap() && !(getSoftCap()->convertToDouble() > 0))
    return emitOpError() << "expected a positive soft_cap, got " << getSoftCap()->convertToDouble();
  return success();
}

FactorRule PagedAttentionOp::getFactorRule() {
  FactorRule rule;
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), tables = shapeOf(getTables());
  int groups = rule.addFactor(query[0]);
  int tokens = rule.addFactor(query[1], FactorKind::Special);
  int kv = rule.addFactor(keys[3]), shared = rule.addFactor(query[2] / keys[3]);
  int features = rule.addFactor(query[3], FactorKind::Special);
  int pages = rule.addFactor(keys[1], FactorKind::Special);
  int rows = rule.addFactor(keys[2], FactorKind::Special);
  int valueFeatures = rule.addFactor(shapeOf(getValues())[4]);
  int requests = rule.addFactor(tables[1], FactorKind::Special);
  int blocks = rule.addFactor(tables[2], FactorKind::Special);
  int starts = rule.addFactor(tables[1] + 1, FactorKind::Special);
  rule.operands = {{{groups}, {tokens}, {kv, shared}, {features}},
                   {{groups}, {pages}, {rows}, {kv}, {features}},
                   {{groups}, {pages}, {rows}, {kv}, {valueFeatures}},
                   {{groups}, {requests}, {blocks}},
                   {{groups}, {starts}},
                   {{groups}, {requests}}};
  for (Value perHead : {getSlopes(), getSinks()})
    if (perHead)
      rule.operands.push_back({{kv, shared}});
  rule.results = {{{groups}, {tokens}, {kv, shared}, {valueFeatures}}};
  return rule;
}

/// A mean of values, or zero.
Padding PagedAttentionOp::getResultPadding(const Operands &in) {
  Padding values = meet(in[2], Padding::Zero);
  return isFinite(values) && !values.cause ? values : Padding::Arbitrary;
}

SmallVector<int64_t, 2> PagedAttentionOp::getExpandedDims() { return {1}; }
int64_t PagedAttentionOp::getNumStatistics() { return 1; }
bool PagedAttentionOp::needsExpansion() { return true; }

/// Each token is a row of the batch of an attention, whose keys are gathered through its table.
Value PagedAttentionOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), values = shapeOf(getValues());
  Shape tables = shapeOf(getTables());
  if (query[0] != 1)
    return {};
  int64_t tokens = query[1], requests = tables[1], blocks = tables[2], size = keys[2];
  Type number = builder.getI64Type();
  // The request of a token: as many requests end before it. Tokens behind all have the last one.
  Value ends = w.slice(w.reshape(getStarts(), {requests + 1}), 0, 1, requests + 1);
  Value at = w.iota(0, RankedTensorType::get({tokens, 1}, number));
  Value isBehind = w.cast(w.compare(CompareKind::Le, w.reshape(ends, {1, requests}), at), number);
  Value request = w.reduce(ReduceKind::Sum, isBehind, {1}, /*keepDims=*/false);
  Value exists = w.compare(CompareKind::Lt, request, w.number(double(requests), number));
  request = w.binary<MinimumOp>(request, w.number(double(requests - 1), number));
  auto take = [&](Value table, Value indices) -> Value {
    SmallVector<int64_t> shape(shapeOf(table));
    shape[0] = shapeOf(indices)[0];
    return GatherOp::create(builder, getLoc(), typeOf(table).clone(shape), table, indices, 0);
  };
  // Keys up to the token's own: the length less the tokens of the request behind it.
  Value own = w.iota(0, RankedTensorType::get({tokens}, number));
  Value seen = w.sub(take(w.reshape(getLengths(), {requests}), request), w.sub(take(ends, request), own));
  seen = w.add(seen, w.number(1, number));
  seen = w.select(exists, seen, w.number(0, number));
  // A block without a page has any one: no token sees it.
  Value pages = w.binary<MaximumOp>(getTables(), w.number(0, number));
  Value ids = w.reshape(take(w.reshape(pages, {requests, blocks}), request), {tokens * blocks});
  auto gather = [&](Value pages, Shape shape) {
    Value rows = take(w.reshape(pages, {shape[1], size, shape[3], shape[4]}), ids);
    return w.transpose(w.reshape(rows, {tokens, blocks * size, shape[3], shape[4]}), {0, 2, 1, 3});
  };
  Value k = gather(getKeys(), keys), v = gather(getValues(), values);
  Value q = w.reshape(getQuery(), {tokens, query[2], 1, query[3]});
  Value position = w.reshape(w.addNumber(seen, -1), {tokens, 1}), places, bias;
  if (getWindowLeft() || getSlopes())
    places = w.iota(0, RankedTensorType::get({blocks * size}, number));
  if (Value slopes = getSlopes()) {
    Type wide = getComputeType(elementOf(getQuery()));
    Value distance = w.cast(w.sub(w.reshape(places, {1, blocks * size}), position), wide);
    bias = w.mul(w.cast(w.reshape(slopes, {1, query[2], 1, 1}), wide),
                 w.reshape(distance, {tokens, 1, 1, blocks * size}));
    bias = w.cast(bias, elementOf(getQuery()));
  }
  bool hasWindow = bool(getWindowLeft());
  RankedTensorType type = typeOf(q).clone({tokens, query[2], 1, values[4]});
  RankedTensorType lse = type.clone({tokens, query[2], 1}).clone(getComputeType(elementOf(getQuery())));
  auto attention = AttentionOp::create(
      builder, getLoc(), type, getSinks() ? Type(lse) : Type(), q, k, v, Value(), bias,
      hasWindow ? position : Value(), hasWindow ? places : Value(), seen, Value(), Value(), Value(), Value(),
      getScaleAttr(), UnitAttr(), getWindowLeftAttr(), IntegerAttr(), IntegerAttr(), getSoftCapAttr(), FloatAttr(),
      IntegerAttr());
  Value result = attention.getResult();
  if (Value sinks = getSinks()) {
    // A score without a value takes its share of the weights.
    Type wide = elementOf(attention.getLse());
    Value share = w.unary<SigmoidOp>(
        w.sub(attention.getLse(), w.cast(w.reshape(sinks, {1, query[2], 1}), wide)));
    result = w.cast(w.mul(w.cast(result, wide), w.reshape(share, {tokens, query[2], 1, 1})), elementOf(result));
  }
  return w.reshape(result, {1, tokens, query[2], values[4]});
}

//===- NnServe.cpp - caches in pages --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"
#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/lib/Support/ElementTypes.h"
#include "meshwright/lib/Support/TensorValues.h"

#include <limits>

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
  int64_t groups = pages[0], tokens = shapeOf(getSlots())[1], size = pages[1] * pages[2];
  auto write = [&](Value rows, Value slots, Value source, int64_t dim) -> Value {
    auto written = IndexCopyOp::create(builder, getLoc(), rows.getType(), rows, slots, source, dim,
                                       /*skips_minus_one=*/true);
    return w.reshape(written.getResult(), pages);
  };
  // The group of a rank stays a dimension of its own: ranks of others have other slots.
  if (groups == 1)
    return write(w.reshape(getPages(), {1, size, pages[3], pages[4]}), getSlots(), getRows(), 1);
  // A slot that is out of range in its group is so among all.
  Type number = builder.getI64Type();
  Value first = w.scale(w.iota(0, RankedTensorType::get({groups, 1}, number)), double(size));
  Value place = w.select(w.compare(CompareKind::Lt, getSlots(), double(size)), w.add(getSlots(), first),
                         w.number(double(groups * size), number));
  Value slots = w.select(w.compare(CompareKind::Lt, getSlots(), 0.0), getSlots(), place);
  return write(w.reshape(getPages(), {groups * size, pages[3], pages[4]}), w.reshape(slots, {groups * tokens}),
               w.reshape(getRows(), {groups * tokens, pages[3], pages[4]}), 0);
}

//===----------------------------------------------------------------------===//
// nn.paged_attention
//===----------------------------------------------------------------------===//

static LogicalResult verifyDeals(PagedAttentionOp op) {
  if (bool(op.getDeals()) != bool(op.getDeal()))
    return op.emitOpError("expected deals and deal, or neither");
  for (std::optional<uint64_t> count : {op.getDeal(), op.getParts()})
    if (count && int64_t(*count) <= 0)
      return op.emitOpError() << "expected a positive number of ranks or parts, got " << int64_t(*count);
  if (!op.getDeals())
    return success();
  int64_t ranks = shapeOf(op.getTables())[1], pages = shapeOf(op.getKeys())[1];
  if (failed(verifyShape(op, "deals", op.getDeals(), {ranks})))
    return failure();
  if (ranks == 0 || ranks > int64_t(*op.getDeal()) || pages % ranks != 0)
    return op.emitOpError() << "expected tables of at most " << int64_t(*op.getDeal()) << " ranks, which divide the "
                         << pages << " pages, got " << ranks;
  return success();
}

static LogicalResult verifyResults(PagedAttentionOp op) {
  Shape query = shapeOf(op.getQuery());
  SmallVector<int64_t> expected{query[0], query[1], query[2]};
  bool isPartial = op.hasParts();
  if (isPartial)
    expected.insert(expected.begin() + 1, op.getNumParts());
  Type compute = getComputeType(elementOf(op.getQuery()));
  if (isPartial && (!op.getLse() || op.getSinks()))
    return op.emitOpError("expected a log-sum-exp and no sinks with deals or parts");
  if (op.getLse() && failed(verifyShape(op, "log-sum-exp", op.getLse(), expected)))
    return failure();
  if (op.getLse() && elementOf(op.getLse()) != compute)
    return op.emitOpError() << "expected a log-sum-exp of " << compute << ", got " << elementOf(op.getLse());
  if (Type type = isPartial ? compute : elementOf(op.getQuery()); elementOf(op.getResult()) != type)
    return op.emitOpError() << "expected a result of " << type << ", got " << elementOf(op.getResult());
  Shape result = shapeOf(op.getResult());
  int64_t most = shapeOf(op.getValues())[4];
  if (result.empty() || result.back() > most)
    return op.emitOpError() << "expected a result of at most the " << most << " features of the values, got "
                         << spell(result);
  expected.push_back(result.back());
  return verifyShape(op, "result", op.getResult(), expected);
}

/// Checks that
///  - the query is [groups, tokens, q_heads, d], keys are [groups, pages, page size, kv_heads, d], and
///    values [groups, pages, page size, kv_heads, n], of one element type;
///  - q_heads are a multiple of kv_heads;
///  - tables are [groups, requests, blocks], or [groups, ranks, requests, blocks] with deals [ranks],
///    which divide the pages and are at most `deal`; starts are [groups, requests + 1] and lengths
///    [groups, requests];
///  - slopes and sinks are [q_heads], and distances [q_heads, n] or [q_heads, 1, n] of the
///    type of the log-sum-exp, n positive;
///  - the window is not negative, and the cap and the numbers of ranks and parts are positive;
///  - the result is [groups, tokens, q_heads, dv], dv at most n, of the type of the query; with deals or
///    parts it is [groups, ranks * parts, tokens, q_heads, dv], of the type of the log-sum-exp;
///  - the log-sum-exp has the shape of the result without dv, and is present with deals or parts, which
///    have no sinks.
LogicalResult PagedAttentionOp::verify() {
  bool isDealt = bool(getDeals());
  if (failed(verifyRank(*this, "query", getQuery(), 4)) || failed(verifyRank(*this, "keys", getKeys(), 5)) ||
      failed(verifyRank(*this, "values", getValues(), 5)) ||
      failed(verifyRank(*this, "tables", getTables(), isDealt ? 4 : 3)) ||
      failed(verifyElementType(*this, "keys", getKeys(), "query", getQuery())) ||
      failed(verifyElementType(*this, "values", getValues(), "query", getQuery())))
    return failure();
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), values = shapeOf(getValues());
  SmallVector<int64_t> tables(shapeOf(getTables()));
  tables[0] = query[0];
  int64_t requests = tables[tables.size() - 2];
  if (failed(verifyShape(*this, "keys", getKeys(), {query[0], keys[1], keys[2], keys[3], query[3]})) ||
      failed(verifyShape(*this, "values", getValues(), {keys[0], keys[1], keys[2], keys[3], values[4]})) ||
      failed(verifyShape(*this, "tables", getTables(), tables)) ||
      failed(verifyShape(*this, "starts", getStarts(), {query[0], requests + 1})) ||
      failed(verifyShape(*this, "lengths", getLengths(), {query[0], requests})))
    return failure();
  if (keys[3] == 0 || query[2] % keys[3] != 0)
    return emitOpError() << "expected a multiple of the " << keys[3] << " heads of keys as heads of the query, got "
                         << query[2];
  for (auto [name, value] : {std::pair("slopes", getSlopes()), std::pair("sinks", getSinks())})
    if (value && failed(verifyShape(*this, name, value, {query[2]})))
      return failure();
  if (Value distances = getDistances()) {
    Shape shape = shapeOf(distances);
    bool isTable = shape.size() == 2 || (shape.size() == 3 && shape[1] == 1);
    if (!isTable || shape[0] != query[2] || shape.back() == 0)
      return emitOpError() << "expected distances [" << query[2] << ", n] or positions [" << query[2]
                           << ", 1, n], n positive, got " << spell(shape);
    if (Type compute = getComputeType(elementOf(getQuery())); elementOf(distances) != compute)
      return emitOpError() << "expected distances of " << compute << ", got " << elementOf(distances);
  }
  if (getWindowLeft() && int64_t(*getWindowLeft()) < 0)
    return emitOpError() << "expected a window that is not negative, got " << int64_t(*getWindowLeft());
  if (getSoftCap() && !(getSoftCap()->convertToDouble() > 0))
    return emitOpError() << "expected a positive soft_cap, got " << getSoftCap()->convertToDouble();
  return failed(verifyDeals(*this)) ? failure() : verifyResults(*this);
}

int64_t PagedAttentionOp::getNumParts() {
  return getParts().value_or(1) * (getDeals() ? shapeOf(getTables())[1] : 1);
}

bool PagedAttentionOp::hasParts() { return getDeals() || getParts(); }

FactorRule PagedAttentionOp::getFactorRule() {
  FactorRule rule;
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), tables = shapeOf(getTables());
  int64_t ranks = getDeals() ? tables[1] : 1, requests = tables[tables.size() - 2];
  int groups = rule.addFactor(query[0]);
  int tokens = rule.addFactor(query[1], FactorKind::Special);
  int kv = rule.addFactor(keys[3]), shared = rule.addFactor(query[2] / keys[3]);
  int features = rule.addFactor(query[3], FactorKind::Special);
  int pages = rule.addFactor(keys[1] / ranks, FactorKind::Special);
  int rows = rule.addFactor(keys[2], FactorKind::Special);
  int64_t numValueFeatures = shapeOf(getValues())[4], numResultFeatures = shapeOf(getResult()).back();
  bool readsAll = numValueFeatures == numResultFeatures && getKeys() != getValues();
  int valueFeatures = rule.addFactor(numValueFeatures, readsAll ? FactorKind::Parallel : FactorKind::Special);
  int resultFeatures = readsAll ? valueFeatures : rule.addFactor(numResultFeatures, FactorKind::Special);
  int requestFactor = rule.addFactor(requests, FactorKind::Special);
  int blocks = rule.addFactor(tables.back(), FactorKind::Special);
  int starts = rule.addFactor(requests + 1, FactorKind::Special);
  int dealt = getDeals() ? rule.addFactor(ranks) : -1;
  ValueFactors cache = {{groups}, {pages}, {rows}, {kv}, {features}};
  ValueFactors table = {{groups}, {requestFactor}, {blocks}};
  if (getDeals()) {
    cache[1] = {dealt, pages};
    table.insert(table.begin() + 1, {dealt});
  }
  ValueFactors ofValues = cache;
  ofValues[4] = {valueFeatures};
  rule.operands = {{{groups}, {tokens}, {kv, shared}, {features}}, cache, ofValues, table,
                   {{groups}, {starts}}, {{groups}, {requestFactor}}};
  if (getDeals())
    rule.operands.push_back({{dealt}});
  for (Value perHead : {getSlopes(), getSinks()})
    if (perHead)
      rule.operands.push_back({{kv, shared}});
  if (Value distances = getDistances()) {
    rule.operands.push_back({{kv, shared}, {rule.addFactor(shapeOf(distances).back(), FactorKind::Special)}});
    if (shapeOf(distances).size() == 3)
      rule.operands.back().insert(rule.operands.back().begin() + 1, FactorRule::DimFactors());
  }
  ValueFactors lse = {{groups}, {tokens}, {kv, shared}};
  if (hasParts()) {
    int parts = rule.addFactor(getParts().value_or(1), FactorKind::Special);
    lse.insert(lse.begin() + 1, getDeals() ? FactorRule::DimFactors{dealt, parts} : FactorRule::DimFactors{parts});
  }
  ValueFactors result = lse;
  result.push_back({resultFeatures});
  rule.results = {result};
  if (getLse())
    rule.results.push_back(lse);
  return rule;
}

/// A mean of values, or zero.
Padding PagedAttentionOp::getResultPadding(const Operands &in) {
  if (in.getResult() > 0)
    return Padding::Arbitrary;
  Padding values = meet(in[2], Padding::Zero);
  return isFinite(values) && !values.cause ? values : Padding::Arbitrary;
}

/// The expansion reads no sharded dimension.
SmallVector<int64_t, 2> PagedAttentionOp::getExpandedDims() { return {}; }
int64_t PagedAttentionOp::getNumStatistics() { return 0; }
bool PagedAttentionOp::needsExpansion() { return true; }

/// Each token is a row of the batch of an attention, whose keys are gathered through its table.
Value PagedAttentionOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  if (getNumParts() > 1)
    return {};
  Shape query = shapeOf(getQuery()), keys = shapeOf(getKeys()), values = shapeOf(getValues());
  Shape tables = shapeOf(getTables());
  if (query[0] != 1)
    return {};
  int64_t tokens = query[1], requests = tables.drop_back().back(), blocks = tables.back(), size = keys[2];
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
  Value k = gather(getKeys(), keys), v = getKeys() == getValues() ? k : gather(getValues(), values);
  int64_t valueFeatures = shapeOf(getResult()).back();
  if (valueFeatures < values[4])
    v = w.slice(v, 3, 0, valueFeatures);
  Value q = w.reshape(getQuery(), {tokens, query[2], 1, query[3]});
  Value position = w.reshape(w.addNumber(seen, -1), {tokens, 1}), places, bias;
  bool hasPositions = getWindowLeft() || getDeals();
  if (hasPositions || getSlopes() || getDistances())
    places = w.iota(0, RankedTensorType::get({blocks * size}, number));
  if (Value deals = getDeals()) {
    // Entry j of the table is block j * deal + deals[0].
    Value block = w.binary<DivOp>(places, w.number(double(size), number));
    Value behind = w.add(w.scale(block, double(*getDeal() - 1)), deals);
    places = w.add(places, w.scale(behind, double(size)));
  }
  if (Value slopes = getSlopes()) {
    Type wide = getComputeType(elementOf(getQuery()));
    Value distance = w.cast(w.sub(w.reshape(places, {1, blocks * size}), position), wide);
    bias = w.mul(w.cast(w.reshape(slopes, {1, query[2], 1, 1}), wide),
                 w.reshape(distance, {tokens, 1, 1, blocks * size}));
    bias = w.cast(bias, elementOf(getQuery()));
  }
  if (Value distances = getDistances()) {
    int64_t count = shapeOf(distances).back(), keys = blocks * size;
    Value entry = w.broadcast(w.reshape(places, {1, keys}), {tokens, keys});
    if (shapeOf(distances).size() == 2)
      entry = w.addNumber(w.sub(entry, position), double(count - 1));
    entry = w.binary<MinimumOp>(w.binary<MaximumOp>(entry, w.number(0, number)), w.number(double(count - 1), number));
    RankedTensorType found = typeOf(distances).clone({query[2], tokens, keys});
    Value table = w.reshape(distances, {query[2], count});
    Value each = GatherOp::create(builder, getLoc(), found, table, entry, 1);
    each = w.reshape(w.transpose(each, {1, 0, 2}), {tokens, query[2], 1, keys});
    each = w.cast(each, elementOf(getQuery()));
    bias = bias ? w.add(bias, each) : each;
  }
  RankedTensorType type = typeOf(q).clone({tokens, query[2], 1, valueFeatures});
  RankedTensorType lse = type.clone({tokens, query[2], 1}).clone(getComputeType(elementOf(getQuery())));
  auto attention = AttentionOp::create(
      builder, getLoc(), type, getSinks() || getLse() ? Type(lse) : Type(), q, k, v, Value(), bias,
      hasPositions ? position : Value(), hasPositions ? places : Value(), seen, Value(), Value(), Value(), Value(),
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
  if (getLse())
    getLse().replaceAllUsesWith(w.reshape(attention.getLse(), shapeOf(getLse())));
  return w.reshape(w.cast(result, elementOf(getResult())), shapeOf(getResult()));
}

//===----------------------------------------------------------------------===//
// nn.merge_parts
//===----------------------------------------------------------------------===//

/// Checks that
///  - parts are [groups, parts, tokens, heads, dv], at least one, and their log-sum-exps have the same
///    shape without dv, all in f32 or all in f64;
///  - the result is [groups, tokens, heads, dv], and its log-sum-exp [groups, tokens, heads] of the type
///    of the others;
///  - sinks are [heads].
LogicalResult MergePartsOp::verify() {
  if (failed(verifyRank(*this, "parts", getParts(), 5)))
    return failure();
  Shape parts = shapeOf(getParts());
  if (parts[1] == 0)
    return emitOpError("expected at least one part");
  SmallVector<int64_t> rows{parts[0], parts[2], parts[3]}, results{parts[0], parts[2], parts[3], parts[4]};
  if (failed(verifyShape(*this, "log-sum-exps", getLses(), parts.drop_back())) ||
      failed(verifyElementType(*this, "log-sum-exps", getLses(), "parts", getParts())) ||
      failed(verifyShape(*this, "result", getResult(), results)) ||
      (getSinks() && failed(verifyShape(*this, "sinks", getSinks(), {parts[3]}))))
    return failure();
  if (getComputeType(elementOf(getParts())) != elementOf(getParts()))
    return emitOpError() << "expected parts of f32 or f64, got " << elementOf(getParts());
  if (getLse() && (failed(verifyShape(*this, "log-sum-exp", getLse(), rows)) ||
                   failed(verifyElementType(*this, "log-sum-exp", getLse(), "parts", getParts()))))
    return failure();
  return success();
}

FactorRule MergePartsOp::getFactorRule() {
  FactorRule rule;
  Shape shape = shapeOf(getParts());
  int groups = rule.addFactor(shape[0]), parts = rule.addFactor(shape[1], FactorKind::Expandable);
  int tokens = rule.addFactor(shape[2]), heads = rule.addFactor(shape[3]), features = rule.addFactor(shape[4]);
  rule.operands = {{{groups}, {parts}, {tokens}, {heads}, {features}}, {{groups}, {parts}, {tokens}, {heads}}};
  if (getSinks())
    rule.operands.push_back({{heads}});
  rule.results = {{{groups}, {tokens}, {heads}, {features}}};
  if (getLse())
    rule.results.push_back({{groups}, {tokens}, {heads}});
  return rule;
}

Padding MergePartsOp::getResultPadding(const Operands &in) {
  return Padding::Arbitrary;
}

SmallVector<int64_t, 2> MergePartsOp::getExpandedDims() { return {1}; }
int64_t MergePartsOp::getNumStatistics() { return 2; }
bool MergePartsOp::needsExpansion() { return true; }

Value MergePartsOp::expand(OpBuilder &builder) {
  Writer w(builder, getLoc());
  Shape shape = shapeOf(getParts());
  Type type = elementOf(getParts());
  Value zero = w.number(0, type), lowest = w.number(-std::numeric_limits<double>::infinity(), type);
  // Nothing is subtracted where no part has a key, so that -inf remains.
  Value largest = w.reduce(ReduceKind::Max, getLses(), {1});
  Value isEmpty = w.compare(CompareKind::Eq, largest, lowest);
  Value shift = w.select(isEmpty, zero, largest);
  Value weights = w.unary<ExpOp>(w.sub(getLses(), shift));
  Value sum = w.reduce(ReduceKind::Sum, weights, {1});
  Value lse = w.add(w.unary<LogOp>(sum), shift), divisor = sum;
  if (Value sinks = getSinks())
    divisor = w.add(sum, w.unary<ExpOp>(w.sub(w.cast(w.reshape(sinks, {1, 1, 1, shape[3]}), type), shift)));
  if (getLse())
    getLse().replaceAllUsesWith(w.reshape(lse, shapeOf(getLse())));
  weights = w.keepWhere(w.compare(CompareKind::Gt, divisor, zero), w.div(weights, divisor));
  SmallVector<int64_t> column(shape.drop_back());
  column.push_back(1);
  weights = w.reshape(weights, column);
  Value share = w.keepWhere(w.compare(CompareKind::Gt, weights, zero), getParts());
  Value merged = w.reduce(ReduceKind::Sum, w.mul(share, weights), {1}, /*keepDims=*/false);
  return w.cast(merged, elementOf(getResult()));
}

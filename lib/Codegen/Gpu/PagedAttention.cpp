//===- PagedAttention.cpp - attention to caches in pages, on GPUs ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A unit is the query heads of a key head, in one part of the keys of a group. Its rows are the tokens of a request
// times these heads. Starts are known at run time only: each block of threads counts the blocks of the requests before
// its own, and blocks behind the last one have no work. Tokens of no request are those of one more, which has no keys.
//
// Rows of pages are found through the table as they are copied to shared memory. Products, maxima, sums and the merge
// of splits are those of nn.attention.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/PagedAttention.h"

#include "meshwright/lib/Codegen/Gpu/AttentionProducts.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/PagedShape.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>

using namespace mlir;

namespace meshwright::lower {

Value keepPagedAttention(OpBuilder &builder, nn::PagedAttentionOp op) {
  auto kept = cast<nn::PagedAttentionOp>(builder.clone(*op));
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPoint(kept);
  kept.getTablesMutable().assign(emitCheckedTables(builder, op));
  if (op.getLse())
    op.getLse().replaceAllUsesWith(kept.getLse());
  return kept.getResult();
}

static AttentionTilePlan planTiles(nn::PagedAttentionOp op, const PagedShape &paged) {
  AttentionShape shape;
  shape.batch = paged.groups;
  shape.queryHeads = paged.queryHeads;
  shape.keyHeads = paged.keyHeads;
  shape.queries = paged.tokens;
  shape.keys = shape.keyRows = paged.getKeys();
  shape.features = paged.features;
  shape.valueFeatures = paged.valueFeatures;
  shape.element = paged.element;
  shape.compute = paged.compute;
  shape.flops = paged.getFlops();
  shape.bytes = paged.getBytes();
  // Biases are numbers of the model, which do not overflow times log2 e.
  ScoreRules rules;
  rules.unit = M_LOG2E;
  rules.factor = op.getScale().convertToDouble() * M_LOG2E;
  if (auto cap = op.getSoftCap()) {
    rules.cap = cap->convertToDouble();
    rules.factor = op.getScale().convertToDouble() / *rules.cap;
  }
  AttentionTilePlan plan(shape, rules, paged.getGroup());
  plan.units *= paged.getNumParts();
  plan.resultElement = elementOf(op.getResult());
  // A request may begin and end within a block.
  plan.blocks = plan.rows / plan.blockRows + std::min(paged.requests + 1, paged.tokens);
  plan.splitKeys();
  return plan;
}

namespace {

/// `Products` are AttentionFma or AttentionMma.
template <typename Products> class PagedTiles final : public Products {
public:
  PagedTiles(nn::PagedAttentionOp op, const PagedShape &shape, const AttentionTilePlan &plan)
      : Products(AttentionLaunch(), plan), paged(op), shape(shape) {}

private:
  using typename Products::Row;
  using typename Products::Tile;
  using Products::add, Products::b, Products::biases, Products::both, Products::choose, Products::compare, Products::div,
      Products::exponentiate, Products::firstFeature, Products::firstKey, Products::firstRow, Products::getIndex,
      Products::getScalar, Products::isBelow, Products::loadElement, Products::loop, Products::max, Products::min,
      Products::mul, Products::numKeys, Products::plan, Products::rem, Products::rows, Products::seen, Products::split,
      Products::sub, Products::unit, Products::whole;

  unsigned bindBuffers(Block &entry) override;
  void emitBlock(Value block) override;
  void emitMask() override;
  bool mayHide() override { return false; }
  bool hasRest() const override { return true; }
  Value getEndOfRows() override { return numRows; }
  Value getResultRow(Value row) override { return getPlace(plane, row); }
  Tile getQueryTile() override;
  Tile getKeyTile() override;
  Tile getValueTile() override;
  Value getWeightFactor(size_t row, Value sum, Value maximum) override;

  /// Finds the request and the first row of block `number` of the unit. Returns whether there are such.
  Value findRows(Value number);
  /// The first token of a request of the group, and the token behind it.
  std::pair<Value, Value> getTokens(Value request);
  void startRows();
  std::pair<Value, Value> getKeys();

  Value loadNumber(Value buffer, Value at) {
    return arith::IndexCastOp::create(b, b.getIndexType(), memref::LoadOp::create(b, buffer, at));
  }
  Value loadPerHead(Value tensor, Value buffer, Value head) {
    Value number = emitCast(b, loadElement(buffer, head, elementOf(tensor)), plan.compute);
    return arith::MulFOp::create(b, number, getScalar(plan.rules.unit));
  }
  Value pick(Value condition, Value a, Value c) { return arith::SelectOp::create(b, condition, a, c); }
  Value word(Value index) { return arith::IndexCastOp::create(b, b.getI32Type(), index); }
  Value getHead(Value row) { return add(mul(keyHead, plan.headsPerUnit), rem(row, plan.headsPerUnit)); }
  Value getToken(Value row) { return add(firstToken, div(row, plan.headsPerUnit)); }
  /// The row of queries, or of results, of a row of the unit in a plane of all tokens.
  Value getPlace(Value ofPlane, Value row) {
    return add(mul(add(mul(ofPlane, shape.tokens), getToken(row)), shape.queryHeads), getHead(row));
  }
  /// The row of pages of a key of the table.
  Value getRowOfPages(Value key);
  /// The number of keys up to a token of the request, and how many of them its window hides.
  Value getSeen(Value token);
  Value getFirstSeen(Value count) {
    return shape.left ? max(sub(count, getIndex(*shape.left + 1)), getIndex(0)) : getIndex(0);
  }
  /// How many of the first `count` keys of a request the table has, and the position of a key of the table.
  Value toLocal(Value count);
  Value toPosition(Value key);

  nn::PagedAttentionOp paged;
  PagedShape shape;
  PagedBuffers buffers;
  /// The place of the unit: its group, its part of all results, the table, and the part of the table's keys.
  Value group, plane, table, part, keyHead;
  /// The request, its length and tokens, and the rows that these have in the unit.
  Value request, length, firstToken, endOfTokens, numRows;
  /// The first entry of the request in the table, the first page of the table, and the residue of its blocks.
  Value tableBase, pageBase, residue;
  /// For each row of the thread, the slope of its head.
  SmallVector<Value> slopes;
};

} // namespace

template <typename Products> unsigned PagedTiles<Products>::bindBuffers(Block &entry) {
  unsigned count = buffers.bind(paged, entry);
  this->query = buffers.query;
  this->key = buffers.keys;
  this->value = buffers.values;
  this->result = buffers.result;
  this->lse = buffers.lse;
  return count;
}

//===----------------------------------------------------------------------===//
// The block
//===----------------------------------------------------------------------===//

template <typename Products> void PagedTiles<Products>::emitBlock(Value block) {
  split = rem(block, plan.splits);
  whole = block = div(block, plan.splits);
  Value number = rem(block, plan.blocks), rest = div(block, plan.blocks);
  firstFeature = mul(rem(rest, plan.slices), plan.sliceFeatures);
  unit = div(rest, plan.slices);
  keyHead = rem(unit, shape.keyHeads);
  plane = div(unit, shape.keyHeads);
  part = rem(plane, shape.parts);
  table = rem(div(plane, shape.parts), shape.ranks);
  group = div(plane, shape.getNumParts());
  Value exists = findRows(number);
  this->when(exists, [&] {
    residue = buffers.deals ? loadNumber(buffers.deals, table) : getIndex(0);
    Value ofTable = add(mul(group, shape.ranks), table);
    tableBase = mul(add(mul(ofTable, shape.requests), min(request, shape.requests - 1)), shape.blocks);
    pageBase = add(mul(group, shape.pages), mul(table, shape.pages / shape.ranks));
    std::pair<Value, Value> range = getKeys();
    startRows();
    this->emitQueries();
    this->emitKeys(range);
  });
}

template <typename Products> std::pair<Value, Value> PagedTiles<Products>::getTokens(Value request) {
  Value first = mul(group, shape.requests + 1);
  auto load = [&](Value i) {
    Value start = loadNumber(buffers.starts, add(first, min(i, shape.requests)));
    return min(max(start, getIndex(0)), shape.tokens);
  };
  Value isRequest = isBelow(request, getIndex(shape.requests));
  return {load(request), pick(isRequest, load(add(request, 1)), getIndex(shape.tokens))};
}

template <typename Products> Value PagedTiles<Products>::findRows(Value number) {
  // The blocks so far, the request, and the blocks before it.
  Value none[] = {getIndex(0), getIndex(0), getIndex(0)};
  auto count = [&](Value i, ValueRange known) {
    auto [from, end] = getTokens(i);
    Value numRows = mul(max(sub(end, from), getIndex(0)), plan.headsPerUnit);
    Value next = add(known[0], div(add(numRows, plan.blockRows - 1), plan.blockRows));
    Value isOwn = both(compare(arith::CmpIPredicate::sle, known[0], number), isBelow(number, next));
    return SmallVector<Value>{next, pick(isOwn, i, known[1]), pick(isOwn, known[0], known[2])};
  };
  SmallVector<Value> found = loop(getIndex(0), getIndex(shape.requests + 1), 1, none, count);
  request = found[1];
  std::tie(firstToken, endOfTokens) = getTokens(request);
  numRows = mul(sub(endOfTokens, firstToken), plan.headsPerUnit);
  firstRow = mul(sub(number, found[2]), plan.blockRows);
  Value isRequest = isBelow(request, getIndex(shape.requests));
  Value at = add(mul(group, shape.requests), min(request, shape.requests - 1));
  length = pick(isRequest, loadNumber(buffers.lengths, at), getIndex(0));
  return isBelow(number, found[0]);
}

template <typename Products> void PagedTiles<Products>::startRows() {
  rows.clear();
  slopes.clear();
  for (int64_t i = 0; i < plan.rowsOfThread; ++i) {
    Row row;
    row.index = add(firstRow, this->getRowOffset(i));
    row.exists = isBelow(row.index, numRows);
    row.index = min(row.index, sub(numRows, getIndex(1)));
    row.head = getHead(row.index);
    row.position = word(sub(getSeen(getToken(row.index)), getIndex(1)));
    if (shape.left)
      row.lowest = arith::SubIOp::create(b, row.position, emitConstant(b, b.getI32Type(), *shape.left));
    if (buffers.slopes)
      slopes.push_back(loadPerHead(paged.getSlopes(), buffers.slopes, row.head));
    rows.push_back(row);
  }
}

//===----------------------------------------------------------------------===//
// Keys
//===----------------------------------------------------------------------===//

template <typename Products> Value PagedTiles<Products>::getSeen(Value token) {
  Value count = add(sub(length, sub(endOfTokens, token)), 1);
  return min(max(count, getIndex(0)), shape.getKeys() * shape.deal);
}

template <typename Products> Value PagedTiles<Products>::toLocal(Value count) {
  if (shape.deal == 1)
    return count;
  Value blocks = div(count, shape.pageSize), rest = rem(count, shape.pageSize);
  Value own = div(sub(add(blocks, shape.deal - 1), residue), shape.deal);
  Value isLast = compare(arith::CmpIPredicate::eq, rem(blocks, shape.deal), residue);
  return add(mul(own, shape.pageSize), pick(isLast, rest, getIndex(0)));
}

template <typename Products> Value PagedTiles<Products>::toPosition(Value key) {
  if (shape.deal == 1)
    return key;
  Value block = add(mul(div(key, shape.pageSize), shape.deal), residue);
  return add(mul(block, shape.pageSize), rem(key, shape.pageSize));
}

template <typename Products> std::pair<Value, Value> PagedTiles<Products>::getKeys() {
  Value lastRow = sub(min(add(firstRow, plan.blockRows), numRows), getIndex(1));
  Value first = toLocal(getFirstSeen(getSeen(getToken(firstRow))));
  Value last = min(toLocal(getSeen(getToken(lastRow))), shape.getKeys());
  if (shape.parts > 1) {
    int64_t step = shape.parts * shape.pageSize;
    Value size = mul(div(add(max(sub(last, first), getIndex(0)), step - 1), step), shape.pageSize);
    first = add(first, arith::MulIOp::create(b, part, size).getResult());
    last = min(last, add(first, size));
  }
  numKeys = last;
  return {first, last};
}

template <typename Products> Value PagedTiles<Products>::getRowOfPages(Value key) {
  Value page = add(pageBase, loadNumber(buffers.tables, add(tableBase, div(key, shape.pageSize))));
  return add(mul(add(mul(page, shape.pageSize), rem(key, shape.pageSize)), shape.keyHeads), keyHead);
}

template <typename Products> auto PagedTiles<Products>::getQueryTile() -> Tile {
  return {buffers.query, Value(), firstRow, numRows, getIndex(0), plan.blockRows, plan.features, plan.features,
          [this](Value row) { return getPlace(group, row); }};
}

template <typename Products> auto PagedTiles<Products>::getKeyTile() -> Tile {
  return {buffers.keys, Value(), firstKey, numKeys, getIndex(0), plan.blockKeys, plan.features, plan.features,
          [this](Value key) { return getRowOfPages(key); }};
}

template <typename Products> auto PagedTiles<Products>::getValueTile() -> Tile {
  return {buffers.values, Value(), firstKey, numKeys, firstFeature, plan.blockKeys, plan.sliceFeatures,
          shape.valueStride, [this](Value key) { return getRowOfPages(key); }};
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

template <typename Products> void PagedTiles<Products>::emitMask() {
  seen.clear();
  biases.clear();
  SmallVector<Value> positions, areKeys;
  for (int64_t i = 0; i < plan.keysOfThread; ++i) {
    Value key = add(firstKey, this->getKeyOffset(i));
    areKeys.push_back(isBelow(key, numKeys));
    positions.push_back(word(toPosition(key)));
  }
  int64_t numDistances = buffers.distances ? shapeOf(paged.getDistances()).back() : 0;
  for (auto [i, row] : llvm::enumerate(rows))
    for (auto [position, isKey] : llvm::zip_equal(positions, areKeys)) {
      Value is = both(isKey, compare(arith::CmpIPredicate::sle, position, row.position));
      if (row.lowest)
        is = both(is, compare(arith::CmpIPredicate::sge, position, row.lowest));
      seen.push_back(is);
      if (!buffers.slopes && !buffers.distances)
        continue;
      Value distance = arith::SubIOp::create(b, position, row.position), bias;
      if (buffers.slopes)
        bias = arith::MulFOp::create(b, slopes[i], arith::SIToFPOp::create(b, plan.compute, distance));
      if (buffers.distances) {
        Value entry = arith::IndexCastOp::create(b, b.getIndexType(), shape.biasByPosition ? position : distance);
        if (!shape.biasByPosition)
          entry = add(entry, numDistances - 1);
        entry = min(max(entry, getIndex(0)), numDistances - 1);
        Value term = loadPerHead(paged.getDistances(), buffers.distances, add(mul(row.head, numDistances), entry));
        bias = bias ? arith::AddFOp::create(b, bias, term).getResult() : term;
      }
      biases.push_back(bias);
    }
}

template <typename Products>
Value PagedTiles<Products>::getWeightFactor(size_t row, Value sum, Value maximum) {
  if (!buffers.sinks)
    return Products::getWeightFactor(row, sum, maximum);
  // The sink takes its share of the weights.
  Value sink = loadPerHead(paged.getSinks(), buffers.sinks, rows[row].head);
  Value largest = arith::MaxNumFOp::create(b, maximum, sink), share = exponentiate(maximum, largest);
  Value total = arith::AddFOp::create(b, arith::MulFOp::create(b, sum, share), exponentiate(sink, largest));
  return arith::DivFOp::create(b, share, total);
}

std::optional<KernelInfo> GpuKernelBuilder::buildPagedAttention(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::PagedAttentionOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  PagedShape shape(op);
  AttentionTilePlan plan = planTiles(op, shape);
  std::unique_ptr<AttentionBlock> emitter;
  if (plan.usesMma)
    emitter = std::make_unique<PagedTiles<AttentionMma>>(op, shape, plan);
  else
    emitter = std::make_unique<PagedTiles<AttentionFma>>(op, shape, plan);
  KernelInfo info;
  info.inputs = llvm::map_to_vector(PagedBuffers().getInputs(op), [](auto member) { return member.first; });
  return buildTiles(launch, *emitter, plan, std::move(info));
}

} // namespace meshwright::lower

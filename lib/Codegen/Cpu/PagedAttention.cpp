//===- PagedAttention.cpp - attention to caches in pages ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/PagedAttention.h"

#include "meshwright/lib/Codegen/Cpu/KernelScope.h"
#include "meshwright/lib/Codegen/Cpu/PagedEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/Math/IR/Math.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// The expansion
//===----------------------------------------------------------------------===//

/// The parts of the keys of each request: enough units for the threads of a large machine, if the
/// request has at least so many keys in each.
static int64_t chooseParts(nn::PagedAttentionOp op) {
  ArrayRef<int64_t> query = shapeOf(op.getQuery()), tables = shapeOf(op.getTables());
  constexpr int64_t kUnits = 64, kMostParts = 32, kLeastKeys = 256;
  // A step may have a quarter of the tokens that its entry holds.
  int64_t units = query[0] * shapeOf(op.getKeys())[3] * std::max<int64_t>(1, query[1] / 4);
  int64_t keys = tables.back() * shapeOf(op.getKeys())[2];
  return std::clamp<int64_t>(std::min(kUnits / units, keys / kLeastKeys), 1, kMostParts);
}

Value expandPagedAttention(OpBuilder &builder, nn::PagedAttentionOp op) {
  int64_t parts = op.hasParts() ? op.getParts().value_or(1) : chooseParts(op);
  bool merges = !op.hasParts() && parts > 1;
  Type compute = getComputeType(elementOf(op.getQuery()));
  RankedTensorType type = typeOf(op.getResult()), lseType;
  SmallVector<int64_t> shape(type.getShape());
  if (merges) {
    shape.insert(shape.begin() + 1, parts);
    type = RankedTensorType::get(shape, compute);
  }
  if (merges || op.getLse())
    lseType = RankedTensorType::get(ArrayRef(shape).drop_back(), compute);
  auto attention = nn::PagedAttentionOp::create(
      builder, op.getLoc(), type, lseType, op.getQuery(), op.getKeys(), op.getValues(), emitCheckedTables(builder, op),
      op.getStarts(), op.getLengths(), op.getDeals(), op.getSlopes(), merges ? Value() : op.getSinks(),
      op.getDistances(), op.getScaleAttr(), op.getWindowLeftAttr(), op.getSoftCapAttr(), op.getDealAttr(),
      merges ? builder.getI64IntegerAttr(parts) : op.getPartsAttr());
  if (!merges) {
    if (op.getLse())
      op.getLse().replaceAllUsesWith(attention.getLse());
    return attention.getResult();
  }
  auto merged = nn::MergePartsOp::create(builder, op.getLoc(), op.getResult().getType(),
                                         op.getLse() ? op.getLse().getType() : Type(), attention.getResult(),
                                         attention.getLse(), op.getSinks());
  if (op.getLse())
    op.getLse().replaceAllUsesWith(merged.getLse());
  return merged.getResult();
}

Value keepMergeParts(OpBuilder &builder, nn::MergePartsOp op) {
  auto kept = cast<nn::MergePartsOp>(builder.clone(*op));
  if (op.getLse())
    op.getLse().replaceAllUsesWith(kept.getLse());
  return kept.getResult();
}

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

PagedPlan::PagedPlan(nn::PagedAttentionOp op, const Processor &processor) : PagedShape(op) {
  lanes = processor.vectorBytes / (compute.getIntOrFloatBitWidth() / 8);
  usesDot = element.isBF16() && processor.hasBf16Dot && lanes == 16 && features % 2 == 0;
  constexpr int64_t kMostRows = 256;
  blockHeads = std::min(getGroup(), kMostRows);
  while (getGroup() % blockHeads)
    --blockHeads;
  blockTokens = std::clamp<int64_t>(kMostRows / blockHeads, 1, std::max<int64_t>(tokens, 1));
  unitBlocks = chooseUnitBlocks();
}

/// Rows of one head are short pieces of a page, and reading such pieces takes longer than reading memory in its order. So a
/// unit has several heads where a step has about one token of each request, as long as there are units for many threads.
int64_t PagedPlan::chooseUnitBlocks() const {
  constexpr int64_t kUnits = 32, kBytes = 512;
  if (tokens > requests || blockHeads != getGroup() || blockHeads >= lanes)
    return 1;
  int64_t units = groups * tokens * keyHeads * getNumParts();
  int64_t bytes = std::max(features, valueStride) * element.getIntOrFloatBitWidth() / 8;
  int64_t most = std::clamp<int64_t>(std::min(units / kUnits, kBytes / bytes), 1, keyHeads);
  while (keyHeads % most)
    --most;
  return most;
}

int64_t PagedPlan::getBlockRows() const {
  int64_t rows = llvm::alignTo(blockHeads * blockTokens, lanes);
  return rows > lanes ? llvm::alignTo(rows, 2 * lanes) : rows;
}

int64_t PagedPlan::getItems() const {
  int64_t blocksOfTokens = std::min(tokens, tokens / blockTokens + requests);
  return groups * std::max<int64_t>(blocksOfTokens, 1) * getInner();
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

PagedEmitter::PagedEmitter(nn::PagedAttentionOp op, const Processor &processor)
    : VectorEmitter(op.getContext(), PagedPlan(op, processor).lanes, elementOf(op.getQuery()),
                    getComputeType(elementOf(op.getQuery()))),
      op(op), plan(op, processor), processor(processor) {
  reserve(offsets, 2 * kRowKeys + 48, b.getI64Type());
  if (plan.blockHeads < lanes)
    reserveRows();
  if (plan.blockHeads >= lanes || plan.blockTokens > 1)
    reserveBlocks();
}

SmallVector<Value> PagedEmitter::getReadTensors() {
  return llvm::map_to_vector(getInputs(op), [](const Member &member) { return member.first; });
}

SmallVector<Type> PagedEmitter::getBufferTypes() {
  SmallVector<Type> types;
  for (const SmallVector<Member> &members : {getInputs(op), getOutputs(op)})
    for (const Member &member : members)
      types.push_back(getBufferType(member.first, {typeOf(member.first).getNumElements()}));
  return types;
}

void PagedEmitter::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = bind(op, entry);
  Value begin = entry.getArgument(next), end = entry.getArgument(next + 1);
  bindWorkspace(entry.getArguments().back());
  emitShare(begin, end);
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

Value PagedEmitter::loadNumber(Value buffer, Value index) {
  return arith::IndexCastOp::create(b, b.getIndexType(), loadScalar(buffer, index));
}

Value PagedEmitter::divUp(Value a, Value c) {
  Value above = sub(add(a, c), getIndex(1));
  return arith::DivUIOp::create(b, above, c);
}

Value PagedEmitter::isEqual(Value a, Value c) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, a, c);
}

Value PagedEmitter::forEachBlock(Value init, BlockVisitor visit) {
  auto clamp = [&](Value token) { return min(max(token, getIndex(0)), plan.tokens); };
  return loop(getIndex(0), getIndex(plan.groups), 1, init, [&](Value g, ValueRange ofGroup) {
    group = g;
    Value first = mul(g, plan.requests + 1);
    SmallVector<Value> known =
        loop(getIndex(0), getIndex(plan.requests), 1, ofGroup, [&](Value r, ValueRange ofRequest) {
          request = r;
          Value from = clamp(loadNumber(starts, add(first, r)));
          endOfTokens = clamp(loadNumber(starts, add(add(first, r), 1)));
          length = loadNumber(lengths, add(mul(g, plan.requests), r));
          return loop(from, endOfTokens, plan.blockTokens, ofRequest, [&](Value token, ValueRange ofBlock) {
            firstToken = token;
            numTokens = min(sub(endOfTokens, token), plan.blockTokens);
            return SmallVector<Value>{visit(ofBlock[0], getWeight(), plan.getInner(), false)};
          });
        });
    firstToken = clamp(loadNumber(starts, add(first, plan.requests)));
    numTokens = sub(getIndex(plan.tokens), firstToken);
    return SmallVector<Value>{visit(known[0], numTokens, 1, true)};
  }).front();
}

void PagedEmitter::emitShare(Value begin, Value end) {
  Value total = forEachBlock(getIndex(0), [&](Value sum, Value weight, int64_t count, bool) {
    return add(sum, mul(weight, count));
  });
  int64_t items = plan.getItems();
  auto getBound = [&](Value item) { return div(arith::MulIOp::create(b, item, total), items); };
  Value lower = getBound(begin), upper = getBound(end);
  forEachBlock(getIndex(0), [&](Value sum, Value weight, int64_t count, bool isPadding) {
    Value next = add(sum, mul(weight, count));
    if (isPadding) {
      Value behind = sub(firstToken, sum);
      loop(add(behind, max(sum, lower)), add(behind, min(next, upper)), 1, [&](Value token) { emitNothing(token); });
      return next;
    }
    // Units that begin in the share.
    auto getUnit = [&](Value bound) {
      return min(divUp(max(sub(bound, sum), getIndex(0)), weight), count);
    };
    loop(getUnit(lower), getUnit(upper), 1, [&](Value unit) { emitUnit(unit); });
    return next;
  });
}

Value PagedEmitter::getSeen(Value token) {
  Value seen = add(sub(length, sub(endOfTokens, token)), 1);
  return min(max(seen, getIndex(0)), plan.getKeys() * plan.deal);
}

Value PagedEmitter::getFirstSeen(Value seen) {
  return plan.left ? max(sub(seen, getIndex(*plan.left + 1)), getIndex(0)) : getIndex(0);
}

Value PagedEmitter::getWeight() {
  constexpr int64_t kUnitKeys = 64, kLeastRows = 8;
  Value last = add(firstToken, sub(numTokens, getIndex(1)));
  Value count = sub(getSeen(last), getFirstSeen(getSeen(firstToken)));
  Value rows = max(mul(numTokens, plan.blockHeads), getIndex(kLeastRows));
  return arith::MulIOp::create(b, add(count, kUnitKeys), rows);
}

Value PagedEmitter::toLocal(Value count) {
  if (plan.deal == 1)
    return count;
  Value blocks = div(count, plan.pageSize), rest = rem(count, plan.pageSize);
  Value own = div(sub(add(blocks, plan.deal - 1), residue), plan.deal);
  Value isLast = isEqual(rem(blocks, plan.deal), residue);
  return add(mul(own, plan.pageSize), arith::SelectOp::create(b, isLast, rest, getIndex(0)));
}

Value PagedEmitter::toPosition(Value key) {
  if (plan.deal == 1)
    return key;
  Value block = add(mul(div(key, plan.pageSize), plan.deal), residue);
  return add(mul(block, plan.pageSize), rem(key, plan.pageSize));
}

void PagedEmitter::emitUnit(Value unit) {
  int64_t unitHeads = plan.blockHeads * plan.unitBlocks, headUnits = plan.queryHeads / unitHeads;
  firstHeadOfUnit = mul(rem(unit, headUnits), unitHeads);
  headOfKeys = div(firstHeadOfUnit, plan.getGroup());
  Value partOfAll = div(unit, headUnits);
  Value part = rem(partOfAll, plan.parts), rank = div(partOfAll, plan.parts);
  residue = deals ? loadNumber(deals, rank) : getIndex(0);
  tableBase = mul(add(mul(add(mul(group, plan.ranks), rank), plan.requests), request), plan.blocks);
  pageBase = add(mul(group, plan.pages), mul(rank, plan.pages / plan.ranks));
  queryOfUnit = add(mul(add(mul(group, plan.tokens), firstToken), plan.queryHeads), firstHeadOfUnit);
  Value plane = add(mul(group, plan.getNumParts()), partOfAll);
  resultOfUnit = add(mul(add(mul(plane, plan.tokens), firstToken), plan.queryHeads), firstHeadOfUnit);

  Value first = toLocal(getFirstSeen(getSeen(firstToken)));
  Value last = min(toLocal(getSeen(add(firstToken, sub(numTokens, getIndex(1))))), plan.getKeys());
  firstOfUnit = first;
  lastOfUnit = last;
  if (plan.parts > 1) {
    constexpr int64_t kStep = 64;
    Value size = div(add(max(sub(last, first), getIndex(0)), plan.parts * kStep - 1), plan.parts * kStep);
    size = max(mul(size, kStep), getIndex(kRowKeys));
    firstOfUnit = add(first, arith::MulIOp::create(b, part, size));
    lastOfUnit = min(last, add(firstOfUnit, size));
  }
  setHeadBlock(getIndex(0));
  auto emitBlocks = [&] { forEachHeadBlock([&] { emitBlockUnit(); }); };
  if (plan.blockHeads >= lanes)
    return emitBlocks();
  if (plan.blockTokens == 1)
    return emitRowUnit();
  when(isEqual(numTokens, getIndex(1)), [&] { emitRowUnit(); }, emitBlocks);
}

void PagedEmitter::setHeadBlock(Value index) {
  headBlock = index;
  Value heads = mul(index, plan.blockHeads);
  firstHead = add(firstHeadOfUnit, heads);
  queryBase = add(queryOfUnit, heads);
  resultBase = add(resultOfUnit, heads);
}

void PagedEmitter::forEachHeadBlock(function_ref<void()> emitBody) {
  if (plan.unitBlocks == 1) {
    setHeadBlock(getIndex(0));
    return emitBody();
  }
  loop(getIndex(0), getIndex(plan.unitBlocks), 1, [&](Value index) {
    setHeadBlock(index);
    emitBody();
  });
}

void PagedEmitter::emitNothing(Value token) {
  auto fill = [&](Value buffer, int64_t columns, double value) {
    Type type = cast<MemRefType>(buffer.getType()).getElementType();
    int64_t count = plan.queryHeads * columns;
    loop(getIndex(0), getIndex(plan.getNumParts()), 1, [&](Value part) {
      Value plane = add(mul(group, plan.getNumParts()), part);
      Value base = mul(add(mul(plane, plan.tokens), token), count);
      loop(base, add(base, count), 1,
           [&](Value i) { memref::StoreOp::create(b, emitConstant(b, type, value), buffer, i); });
    });
  };
  fill(result, plan.valueFeatures, 0);
  if (lse)
    fill(lse, 1, -std::numeric_limits<double>::infinity());
}

void PagedEmitter::lookUpKeys(Value count) {
  constexpr int64_t kStored = 8, kRepeated = 32;
  auto type = getVector(kStored, b.getI64Type());
  SmallVector<int64_t> steps;
  for (int64_t i = 0; i < kStored; ++i)
    steps.push_back(i * plan.keyHeads);
  Value order = arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef<int64_t>(steps)));
  auto toI64 = [&](Value index) { return arith::IndexCastOp::create(b, b.getI64Type(), index).getResult(); };
  Value end = add(firstKey, count);
  loop(div(firstKey, plan.pageSize), div(add(end, plan.pageSize - 1), plan.pageSize), 1, [&](Value block) {
    Value page = add(pageBase, loadNumber(tables, add(tableBase, block)));
    Value origin = mul(block, plan.pageSize);
    Value from = max(origin, firstKey), to = min(add(origin, plan.pageSize), end);
    Value row = add(mul(page, plan.pageSize), sub(from, origin));
    Value base = add(mul(row, plan.keyHeads), headOfKeys);
    Value target = sub(from, firstKey);
    // Rows behind the end of a page are those of the next page, or repeat the last one, once that is
    // stored.
    loop(getIndex(0), sub(to, from), kStored, [&](Value i) {
      Value start = splatOf(toI64(add(base, mul(i, plan.keyHeads))), kStored);
      store(arith::AddIOp::create(b, start, order), offsets.buffer, add(target, i));
    });
  });
  Value last = loadScalar(offsets.buffer, sub(count, getIndex(1)));
  for (int64_t i = 0; i < kRepeated; i += kStored)
    store(splatOf(last, kStored), offsets.buffer, add(count, i));
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

double PagedEmitter::getFactor() {
  double scale = op.getScale().convertToDouble();
  return op.getSoftCap() ? scale / op.getSoftCap()->convertToDouble() : scale * M_LOG2E;
}

Value PagedEmitter::cap(Value products) {
  return op.getSoftCap() ? emitSoftCap(b, op.getSoftCap()->convertToDouble(), M_LOG2E, products) : products;
}

Value PagedEmitter::exponentiate(Value difference, Value maximum) {
  return exp2(arith::SubFOp::create(b, difference, maximum));
}

Value PagedEmitter::getResultFactor(Value sum, Value maximum, Value sink) {
  if (!sink)
    return invert(sum);
  Value largest = larger(maximum, sink);
  Value share = exponentiate(maximum, largest);
  Value total = arith::AddFOp::create(b, arith::MulFOp::create(b, sum, share), exponentiate(sink, largest));
  Value zero = getSplat(0);
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
  return arith::SelectOp::create(b, isEmpty, zero, arith::DivFOp::create(b, share, total));
}

Value PagedEmitter::getLogSumExp(Value sum, Value maximum) {
  return arith::AddFOp::create(b, math::LogOp::create(b, sum),
                               arith::MulFOp::create(b, maximum, getSplat(M_LN2)));
}

Value PagedEmitter::getLowest() { return getSplat(-std::numeric_limits<double>::infinity()); }

Value PagedEmitter::loadPerHead(Value buffer, Value row) {
  Value number = widen(loadScalar(buffer, add(firstHead, rem(row, plan.blockHeads))));
  return arith::MulFOp::create(b, number, getScalar(M_LOG2E));
}

Value PagedEmitter::getBiasOrigin(Value row) {
  int64_t count = shapeOf(op.getDistances()).back();
  Value head = add(firstHead, rem(row, plan.blockHeads));
  return arith::IndexCastOp::create(b, b.getI32Type(), add(mul(head, count), plan.biasByPosition ? 0 : count - 1));
}

Value PagedEmitter::loadBias(Value origin, Value steps) {
  auto type = getVector(lanes, b.getI32Type());
  int64_t least = plan.biasByPosition ? 0 : 1 - shapeOf(op.getDistances()).back();
  int64_t most = least + shapeOf(op.getDistances()).back() - 1;
  Value place = arith::MaxSIOp::create(b, steps, emitConstant(b, type, least));
  place = arith::AddIOp::create(b, origin, arith::MinSIOp::create(b, place, emitConstant(b, type, most)));
  Value all = arith::ConstantOp::create(
      b, DenseElementsAttr::get(getVector(lanes, b.getI1Type()), b.getBoolAttr(true)));
  Value found = vector::GatherOp::create(b, getVector(), distances, ValueRange{getIndex(0)}, place, all, getSplat(0));
  return arith::MulFOp::create(b, found, getSplat(M_LOG2E));
}

std::optional<KernelInfo> KernelScope::buildPagedAttention(rt::KernelOp launch) {
  auto ops = launch.getOps();
  if (std::distance(ops.begin(), ops.end()) != 1 || !isa<nn::PagedAttentionOp>(*ops.begin()))
    return std::nullopt;
  auto op = cast<nn::PagedAttentionOp>(*ops.begin());
  PagedEmitter emitter(op, kernels.getProcessor());
  const PagedPlan &plan = emitter.getPlan();
  func::FuncOp kernel = begin(op, emitter.getBufferTypes(), emitter.getWorkspaceBytes());
  emitter.emit(kernel);

  KernelInfo info;
  info.inputs = emitter.getReadTensors();
  info.name = finish(kernel, launch, info.inputs);
  info.kind = MW_RT_ATTENTION;
  info.items = plan.getItems();
  info.workspaceBytes = emitter.getWorkspaceBytes();
  info.flops = plan.getFlops();
  info.bytes = plan.getBytes();
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  return info;
}

} // namespace meshwright::lower

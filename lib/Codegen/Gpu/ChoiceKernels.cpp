//===- ChoiceKernels.cpp - choices of experts, on GPUs --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Top-k: some lanes of a warp own a row, or a block a long one. They find its elements one after
// another: the first one of all behind the one before, in the order of the result. So nothing is
// noted about elements.
//
// Route: a block owns an expert, and one more block the choices without a row. A block goes over
// all choices twice. Its warps share them, each some consecutive ones. First it counts the choices
// of experts before its own, which is its first row, and those of its own in each warp. Then it
// numbers its own ones, in their order. So no block waits for another one, and places follow from
// the choices alone. Where experts share rows, a choice has one if no choice of its token before is of the
// same group. Where tokens are rows, they are of a group of experts, whose offsets a lane reads.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>

using namespace mlir;

namespace meshwright::lower {

using Compare = arith::CmpIPredicate;

//===----------------------------------------------------------------------===//
// The largest elements
//===----------------------------------------------------------------------===//

namespace {
class TopK : LoopEmitter {
public:
  explicit TopK(nn::TopKOp op);

  int64_t getNumThreads() const { return threads; }
  int64_t getNumBlocks() const { return llvm::divideCeil(rows, threads / lanes); }
  int64_t getSharedBytes() const {
    return lanes > Chip::warpSize ? 2 * getNumWarps() * sizeof(int64_t) : 0;
  }
  /// Fills the function, whose arguments are the buffers, and the shared memory if there is some.
  void emit(func::FuncOp kernel);

private:
  /// An element of a row: a number that orders elements, and the column.
  struct Element {
    Value key, column;
  };
  Value getInteger(APInt value) {
    return arith::ConstantOp::create(b, b.getIntegerAttr(keyType, value));
  }
  Value compare(Compare how, Value a, Value c) { return arith::CmpIOp::create(b, how, a, c); }
  /// Orders as the element does. Zeros are equal, and NaN is the largest.
  Value getKey(Value stored);
  Value isBefore(Element a, Element c);
  Element pickFirst(Element a, Element c);
  /// The first one of those of all lanes of the row.
  Element pickFirstOfLanes(Element own);
  int64_t getNumWarps() const { return threads / Chip::warpSize; }
  /// The first element behind `last` of the row that begins at `begin`.
  Element findNext(Value scores, Value begin, Value lane, Element last);

  int64_t rows, size, k;
  /// The threads of a row, and of a block.
  int64_t lanes, threads = 128;
  Type element;
  IntegerType keyType;
  /// The first element of each warp: a key and a column.
  Value firsts;
};
} // namespace

TopK::TopK(nn::TopKOp op)
    : LoopEmitter(op.getContext()), size(shapeOf(op.getScores()).back()), k(op.getK()),
      element(elementOf(op.getScores())) {
  rows = ShapedType::getNumElements(shapeOf(op.getScores()).drop_back());
  constexpr int64_t longest = 2048;
  lanes = std::min<int64_t>(llvm::PowerOf2Ceil(size), Chip::warpSize);
  if (size > longest)
    lanes = threads = Chip::maxThreads;
  keyType = b.getIntegerType(element.getIntOrFloatBitWidth() == 64 ? 64 : 32);
}

Value TopK::getKey(Value stored) {
  if (isa<IntegerType>(element))
    return stored;
  Type compute = getComputeType(element);
  Value number = emitCast(b, fromRowStorage(b, stored, element), compute);
  // The sum makes -0 0. Bits of numbers below 0 are in reverse order.
  number = arith::AddFOp::create(b, number, emitConstant(b, compute, 0));
  Value isNan = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, number, number);
  Value bits = arith::BitcastOp::create(b, keyType, number);
  APInt most = APInt::getSignedMaxValue(keyType.getWidth());
  Value isNegative = compare(Compare::slt, bits, emitConstant(b, keyType, 0));
  Value reversed = arith::XOrIOp::create(b, bits, getInteger(most));
  bits = arith::SelectOp::create(b, isNegative, reversed, bits);
  return arith::SelectOp::create(b, isNan, getInteger(most), bits);
}

Value TopK::isBefore(Element a, Element c) {
  Value isFurther =
      both(compare(Compare::eq, a.key, c.key), compare(Compare::slt, a.column, c.column));
  return arith::OrIOp::create(b, compare(Compare::sgt, a.key, c.key), isFurther);
}

TopK::Element TopK::pickFirst(Element a, Element c) {
  Value first = isBefore(a, c);
  return {arith::SelectOp::create(b, first, a.key, c.key),
          arith::SelectOp::create(b, first, a.column, c.column)};
}

TopK::Element TopK::findNext(Value scores, Value begin, Value lane, Element last) {
  // Behind all elements.
  Value none[] = {getInteger(APInt::getSignedMinValue(keyType.getWidth())),
                  emitConstant(b, b.getI64Type(), double(size))};
  int64_t turns = llvm::divideCeil(size, lanes);
  SmallVector<Value> found =
      loop(getIndex(0), getIndex(turns), 1, none, [&](Value turn, ValueRange known) {
        Value column = add(mul(turn, lanes), lane), exists;
        if (size % lanes) {
          exists = isBelow(column, getIndex(size));
          column = min(column, size - 1);
        }
        Element here = {getKey(memref::LoadOp::create(b, scores, add(begin, column))),
                        arith::IndexCastOp::create(b, b.getI64Type(), column)};
        exists = both(exists, isBefore(last, here));
        Element first = pickFirst(here, {known[0], known[1]});
        return SmallVector<Value>{arith::SelectOp::create(b, exists, first.key, known[0]),
                                  arith::SelectOp::create(b, exists, first.column, known[1])};
      });
  return pickFirstOfLanes({found[0], found[1]});
}

TopK::Element TopK::pickFirstOfLanes(Element first) {
  for (int64_t mask = std::min(lanes, Chip::warpSize) / 2; mask > 0; mask /= 2)
    first =
        pickFirst(first, {emitExchange(b, first.key, mask), emitExchange(b, first.column, mask)});
  if (lanes <= Chip::warpSize)
    return first;
  Value thread = emitThread(b, threads),
        isFirst = isBelow(rem(thread, Chip::warpSize), getIndex(1));
  when(isFirst, [&] {
    Value at = mul(div(thread, Chip::warpSize), 2);
    memref::StoreOp::create(b, emitCast(b, first.key, b.getI64Type()), firsts, at);
    memref::StoreOp::create(b, first.column, firsts, add(at, 1));
  });
  emitBarrier(b);
  for (int64_t warp = 0; warp < getNumWarps(); ++warp) {
    Value key = memref::LoadOp::create(b, firsts, getIndex(2 * warp));
    Value column = memref::LoadOp::create(b, firsts, getIndex(2 * warp + 1));
    Element other = {emitCast(b, key, keyType), column};
    first = warp == 0 ? other : pickFirst(first, other);
  }
  emitBarrier(b);
  return first;
}

void TopK::emit(func::FuncOp kernel) {
  b.setInsertionPointToStart(&kernel.getBody().front());
  Value scores = kernel.getArgument(0), result = kernel.getArgument(1);
  if (getSharedBytes() > 0)
    firsts = emitShared(b, kernel.getArgument(2), 0, 2 * getNumWarps(), b.getI64Type());
  Value number = emitItem(b, getNumBlocks(), threads), lane = rem(number, lanes);
  Value row = div(number, lanes), exists = isBelow(row, getIndex(rows));
  exists = both(exists, arith::CmpIOp::create(b, Compare::eq, lane, getIndex(0)));
  // Lanes beyond the end take part in exchanges.
  row = min(row, rows - 1);
  Value begin = mul(row, size);
  // Before all elements.
  Value none[] = {getInteger(APInt::getSignedMaxValue(keyType.getWidth())),
                  emitConstant(b, b.getI64Type(), -1)};
  loop(getIndex(0), getIndex(k), 1, none, [&](Value i, ValueRange last) {
    Element next = findNext(scores, begin, lane, {last[0], last[1]});
    when(exists, [&] { memref::StoreOp::create(b, next.column, result, add(mul(row, k), i)); });
    return SmallVector<Value>{next.key, next.column};
  });
}

std::optional<KernelInfo> GpuKernelBuilder::buildTopK(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::TopKOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  TopK emitter(op);
  KernelInfo info;
  info.inputs = {op.getScores()};
  info.items = emitter.getNumBlocks();
  info.grain = emitter.getNumThreads();
  info.flops = op.getScores().getType().getNumElements();
  func::FuncOp kernel = begin(launch, info.inputs, emitter.getSharedBytes(), info.grain);
  if (info.items > 0)
    emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

//===----------------------------------------------------------------------===//
// Places of rows
//===----------------------------------------------------------------------===//

namespace {
class Route : LoopEmitter {
public:
  explicit Route(nn::RouteOp op);

  int64_t getNumBlocks() const { return experts + 1; }
  int64_t getNumThreads() const { return warps * Chip::warpSize; }
  int64_t getSharedBytes() const { return 2 * warps * sizeof(int32_t); }
  const SmallVector<Value> &getInputs() const { return inputs; }
  /// Fills the function, whose arguments are the buffers, the fault word and the shared memory.
  void emit(func::FuncOp kernel);

private:
  /// The choice of this lane, or the last one of all where no choice `exists`.
  struct Choice {
    Value number, exists;
    /// The index is an expert or -1. The choice has a row; one of an expert before this block's;
    /// one of this block's.
    Value isInside, hasRow, isBefore, isOwn;
  };
  /// Some choices of each lane, which come from memory together. Those of a warp follow those of
  /// the one before, and choices of lanes follow each other.
  SmallVector<Choice> getChoices(Value turn);
  Choice getChoice(Value number, Value exists, Value expert);
  /// Whether no choice of the token before is of this group of experts.
  Value isFirstOfToken(Value number, Value group);
  /// Whether a token that is a row is one of the group of an expert of this rank.
  Value isOfGroup(Value number, Value expert);
  Value getGroup(Value expert) {
    return shared == 1 ? expert : arith::DivSIOp::create(b, expert, getInteger(shared));
  }
  Value loadChoice(Value number) {
    return emitCast(b, memref::LoadOp::create(b, indices, number), b.getI64Type());
  }
  /// The first row of this block, and the first one of this warp.
  std::pair<Value, Value> findRows();
  void placeRows(Value firstOfWarp);
  void placeRow(const Choice &choice, Value row);
  /// Of the last block: checks all choices, and notes those without a row.
  void placeOthers(Value numRows);
  /// How many lanes have a bit in a ballot, and how many before this one.
  Value countLanes(Value ballot) { return widen(emitBitCount(b, ballot)); }
  Value countLanesBefore(Value ballot) { return widen(emitBitCountBefore(b, ballot)); }
  Value widen(Value word) { return arith::IndexCastUIOp::create(b, b.getIndexType(), word); }
  Value toInteger(Value index) { return arith::IndexCastOp::create(b, b.getI64Type(), index); }
  Value getInteger(int64_t value) {
    return arith::ConstantOp::create(b, b.getI64IntegerAttr(value));
  }
  Value compare(Compare how, Value a, Value c) { return arith::CmpIOp::create(b, how, a, c); }
  Value negate(Value a) { return arith::XOrIOp::create(b, a, emitConstant(b, b.getI1Type(), 1)); }

  SmallVector<Value> inputs;
  /// All choices, and the turns of a warp, of which each has `atOnce` choices of each lane.
  int64_t count, turns, atOnce = 4;
  int64_t experts, total, capacity, warps;
  /// The choices of a token, the experts that share a row, and the groups of which tokens are rows, or 0.
  int64_t perToken, shared, groups = 0;
  bool hasFirst;
  Value indices, first, rows, offsets, choices, places, fault, counts;
  Value thread, warp, lane, block;
};
} // namespace

Route::Route(nn::RouteOp op)
    : LoopEmitter(op.getContext()), inputs(op->getOperands()),
      count(ShapedType::getNumElements(shapeOf(op.getIndices()))), experts(op.getExperts()),
      total(op.getTotal().value_or(op.getExperts())), capacity(shapeOf(op.getChoices()).front()),
      perToken(shapeOf(op.getIndices()).back()), shared(op.getShared().value_or(1)),
      hasFirst(bool(op.getOffset())) {
  if (op.getRows())
    groups = shapeOf(op.getRows()).front() - 1;
  constexpr int64_t mostWarps = 16;
  int64_t chunks = llvm::divideCeil(count, Chip::warpSize);
  warps = std::clamp<int64_t>(llvm::PowerOf2Ceil(chunks), 1, mostWarps);
  if (chunks <= warps)
    atOnce = 1;
  turns = llvm::divideCeil(chunks, warps * atOnce);
}

SmallVector<Route::Choice> Route::getChoices(Value turn) {
  SmallVector<Value> numbers, exist, experts;
  for (int64_t i = 0; i < atOnce; ++i) {
    Value chunk = add(mul(add(mul(warp, turns), turn), atOnce), i);
    Value number = add(mul(chunk, Chip::warpSize), lane);
    exist.push_back(isBelow(number, getIndex(count)));
    numbers.push_back(min(number, count - 1));
    experts.push_back(memref::LoadOp::create(b, indices, numbers.back()));
  }
  SmallVector<Choice> choices;
  for (auto [number, exists, expert] : llvm::zip_equal(numbers, exist, experts))
    choices.push_back(getChoice(number, exists, emitCast(b, expert, b.getI64Type())));
  return choices;
}

Route::Choice Route::getChoice(Value number, Value exists, Value expert) {
  Choice choice;
  choice.exists = exists;
  choice.number = number;
  Value isExpert = compare(Compare::ult, expert, getInteger(total * shared));
  Value isNone = compare(Compare::eq, expert, getInteger(-1));
  choice.isInside = arith::OrIOp::create(b, isExpert, isNone);
  Value own = getGroup(expert);
  if (first)
    own = arith::SubIOp::create(b, own, first);
  choice.hasRow = both(both(choice.exists, isExpert), compare(Compare::ult, own, getInteger(experts)));
  if (shared > 1)
    choice.hasRow = both(choice.hasRow, isFirstOfToken(number, getGroup(expert)));
  if (groups > 0) {
    choice.hasRow = both(choice.hasRow, isOfGroup(number, own));
    Value end = memref::LoadOp::create(b, rows, getIndex(groups));
    Value isToken = compare(Compare::slt, toInteger(div(number, perToken)), end);
    choice.isInside = arith::OrIOp::create(b, choice.isInside, negate(isToken));
  }
  choice.isBefore = both(choice.hasRow, compare(Compare::ult, own, toInteger(block)));
  choice.isOwn = both(choice.hasRow, compare(Compare::eq, own, toInteger(block)));
  return choice;
}

Value Route::isFirstOfToken(Value number, Value group) {
  Value place = rem(number, perToken), begin = sub(number, place), isOther = emitConstant(b, b.getI1Type(), 0);
  for (int64_t i = 0; i + 1 < perToken; ++i) {
    // A choice of no expert is of no group.
    Value other = loadChoice(add(begin, i));
    Value isSame = both(compare(Compare::sge, other, getInteger(0)), compare(Compare::eq, getGroup(other), group));
    isOther = arith::OrIOp::create(b, isOther, both(isSame, isBelow(getIndex(i), place)));
  }
  return negate(isOther);
}

Value Route::isOfGroup(Value number, Value expert) {
  Value token = toInteger(div(number, perToken));
  // Experts of other ranks have no group here, and no row.
  Value isHere = compare(Compare::ult, expert, getInteger(experts));
  Value group = arith::DivSIOp::create(b, arith::SelectOp::create(b, isHere, expert, getInteger(0)),
                                       getInteger(experts / groups));
  group = arith::IndexCastOp::create(b, b.getIndexType(), group);
  Value begin = memref::LoadOp::create(b, rows, group), end = memref::LoadOp::create(b, rows, add(group, 1));
  return both(compare(Compare::sle, begin, token), compare(Compare::slt, token, end));
}

std::pair<Value, Value> Route::findRows() {
  Value none[] = {getIndex(0), getIndex(0)};
  SmallVector<Value> ofWarp =
      loop(getIndex(0), getIndex(turns), 1, none, [&](Value turn, ValueRange known) {
        SmallVector<Value> counted(known);
        for (const Choice &choice : getChoices(turn)) {
          counted[0] = add(counted[0], countLanes(emitBallot(b, choice.isBefore)));
          counted[1] = add(counted[1], countLanes(emitBallot(b, choice.isOwn)));
        }
        return counted;
      });
  when(compare(Compare::eq, lane, getIndex(0)), [&] {
    for (int64_t i : {0, 1})
      memref::StoreOp::create(b, arith::IndexCastOp::create(b, b.getI32Type(), ofWarp[i]), counts,
                              add(mul(warp, 2), i));
  });
  emitBarrier(b);
  auto getCount = [&](Value other, int64_t i) {
    return widen(memref::LoadOp::create(b, counts, add(mul(other, 2), i)));
  };
  SmallVector<Value> found =
      loop(getIndex(0), getIndex(warps), 1, none, [&](Value other, ValueRange known) {
        Value own =
            arith::SelectOp::create(b, isBelow(other, warp), getCount(other, 1), getIndex(0));
        return SmallVector<Value>{add(known[0], getCount(other, 0)), add(known[1], own)};
      });
  return {found[0], add(found[0], found[1])};
}

void Route::placeRows(Value firstOfWarp) {
  loop(getIndex(0), getIndex(turns), 1, firstOfWarp, [&](Value turn, ValueRange known) {
    Value next = known.front();
    for (const Choice &choice : getChoices(turn)) {
      Value ballot = emitBallot(b, choice.isOwn);
      when(choice.isOwn, [&] { placeRow(choice, add(next, countLanesBefore(ballot))); });
      next = add(next, countLanes(ballot));
    }
    return SmallVector<Value>{next};
  });
}

void Route::placeRow(const Choice &choice, Value row) {
  Value fits = isBelow(row, getIndex(capacity));
  emitFault(b, fits, fault, add(choice.number, getIndex(MW_RT_NO_ROOM)));
  when(fits, [&] { memref::StoreOp::create(b, toInteger(choice.number), choices, row); });
  Value place = arith::SelectOp::create(b, fits, toInteger(row), getInteger(-1));
  memref::StoreOp::create(b, place, places, choice.number);
}

void Route::placeOthers(Value numRows) {
  loop(getIndex(0), getIndex(turns), 1, [&](Value turn) {
    for (const Choice &choice : getChoices(turn)) {
      emitFault(b, choice.isInside, fault, choice.number);
      when(both(choice.exists, negate(choice.hasRow)),
           [&] { memref::StoreOp::create(b, getInteger(-1), places, choice.number); });
    }
  });
  loop(add(numRows, thread), getIndex(capacity), getNumThreads(),
       [&](Value row) { memref::StoreOp::create(b, getInteger(-1), choices, row); });
}

void Route::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = 0;
  indices = entry.getArgument(next++);
  if (hasFirst) {
    first = memref::LoadOp::create(b, entry.getArgument(next++), getIndex(0));
    first = emitCast(b, first, b.getI64Type());
  }
  if (groups > 0)
    rows = entry.getArgument(next++);
  for (Value *buffer : {&offsets, &choices, &places, &fault})
    *buffer = entry.getArgument(next++);
  counts = emitShared(b, entry.getArgument(next), 0, 2 * warps, b.getI32Type());
  thread = emitThread(b, getNumThreads());
  warp = div(thread, Chip::warpSize);
  lane = rem(thread, Chip::warpSize);
  block = emitBlock(b, getNumBlocks());
  auto [row, rowOfWarp] = findRows();
  Value offset = min(row, capacity);
  when(compare(Compare::eq, thread, getIndex(0)),
       [&] { memref::StoreOp::create(b, toInteger(offset), offsets, block); });
  when(
      isBelow(block, getIndex(experts)), [&, rowOfWarp = rowOfWarp] { placeRows(rowOfWarp); },
      [&] { placeOthers(offset); });
}

std::optional<KernelInfo> GpuKernelBuilder::buildRoute(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::RouteOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  Route emitter(op);
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs = emitter.getInputs();
  info.items = emitter.getNumBlocks();
  info.grain = emitter.getNumThreads();
  info.checksIndices = true;
  func::FuncOp kernel = begin(launch, info.inputs, emitter.getSharedBytes(), info.grain,
                              /*hasFault=*/true);
  // 128 registers for a thread or more, so that ptxas spills none.
  kernel->setAttr(kBlocksAttr, IntegerAttr::get(IntegerType::get(launch.getContext(), 64), 1));
  emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

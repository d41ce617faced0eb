//===- ExpertRows.cpp - rows of experts, on GPUs --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A thread moves or sums some consecutive elements of a row of the result. It finds their places by
// the offsets of experts, or the choices, or places of a route. It adds up rows in their order, and
// reads some at a time, so that they are on their way together.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <numeric>

using namespace mlir;

namespace meshwright::lower {

static Value loadIndex(Builder &b, Value buffer, Value at) {
  Value value = memref::LoadOp::create(b, buffer, at);
  return arith::IndexCastOp::create(b, b.getIndexType(), value);
}

Value emitExistingRows(Builder &b, Value offsets, int64_t rows) {
  int64_t last = cast<MemRefType>(offsets.getType()).getNumElements() - 1;
  return arith::MinUIOp::create(b, loadIndex(b, offsets, emitIndex(b, last)), emitIndex(b, rows));
}

Value emitExistingItems(Builder &b, Value existing, int64_t rows, int64_t items) {
  Value whole = arith::MulIOp::create(b, existing, emitIndex(b, items / rows));
  if (items % rows == 0)
    return whole;
  Value rest = arith::MulIOp::create(b, existing, emitIndex(b, items % rows));
  rest = arith::AddIOp::create(b, rest, emitIndex(b, rows - 1));
  return arith::AddIOp::create(b, whole, arith::DivUIOp::create(b, rest, emitIndex(b, rows)));
}

Value emitFirstRow(Builder &b, Value offsets, Value expert) {
  return loadIndex(b, offsets, expert);
}

/// The last expert of 0 to `experts` whose number by `getFirst` is not above `number`. These
/// numbers do not fall from expert to expert, and the first one is 0.
static Value findExpert(Builder &b, int64_t experts, Value number,
                        llvm::function_ref<Value(Value expert)> getFirst) {
  Value found = emitIndex(b, 0);
  for (int64_t step = llvm::bit_floor(uint64_t(experts)); step > 0; step /= 2) {
    Value next = arith::AddIOp::create(b, found, emitIndex(b, step)), last = emitIndex(b, experts);
    Value exists = arith::CmpIOp::create(b, arith::CmpIPredicate::ule, next, last);
    Value first = getFirst(arith::MinUIOp::create(b, next, last));
    Value isReached = arith::CmpIOp::create(b, arith::CmpIPredicate::ule, first, number);
    isReached = arith::AndIOp::create(b, exists, isReached);
    found = arith::SelectOp::create(b, isReached, next, found);
  }
  return found;
}

Value emitExpertOfRow(Builder &b, Value offsets, int64_t experts, Value row) {
  return findExpert(b, experts, row, [&](Value expert) { return loadIndex(b, offsets, expert); });
}

static int64_t getNumTilesByExpert(int64_t capacity, int64_t experts, int64_t tileRows) {
  return capacity / tileRows + experts;
}

int64_t getNumExpertTiles(int64_t capacity, int64_t experts, int64_t tileRows) {
  return std::min(capacity, getNumTilesByExpert(capacity, experts, tileRows));
}

ExpertTile emitExpertTile(Builder &b, Value offsets, int64_t capacity, int64_t experts,
                          int64_t tileRows, Value tile) {
  bool isByRow = capacity < getNumTilesByExpert(capacity, experts, tileRows);
  Value rows = emitIndex(b, tileRows), last = emitIndex(b, experts);
  // An expert of n rows has a number for each n / tileRows rows, rounded down, and one more, at
  // least.
  auto getFirst = [&](Value expert) -> Value {
    Value first = loadIndex(b, offsets, expert);
    if (isByRow)
      return first;
    return arith::AddIOp::create(b, arith::DivUIOp::create(b, first, rows), expert);
  };
  ExpertTile result;
  result.expert = findExpert(b, experts, tile, getFirst);
  Value next = arith::AddIOp::create(b, result.expert, emitIndex(b, 1));
  result.endOfExpert = loadIndex(b, offsets, arith::MinUIOp::create(b, next, last));
  Value inExpert = arith::SubIOp::create(b, tile, getFirst(result.expert));
  if (isByRow) {
    result.firstRow = tile;
    result.exists = arith::CmpIOp::create(
        b, arith::CmpIPredicate::eq, arith::RemUIOp::create(b, inExpert, rows), emitIndex(b, 0));
  } else {
    result.firstRow = arith::AddIOp::create(b, loadIndex(b, offsets, result.expert),
                                            arith::MulIOp::create(b, inExpert, rows));
  }
  // Behind the last expert, the end is before the first row, or is it.
  Value hasRow = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, result.firstRow, result.endOfExpert);
  result.exists = result.exists ? arith::AndIOp::create(b, result.exists, hasRow).getResult() : hasRow;
  return result;
}

namespace {
/// Moves or sums rows [any, inner] to a result [rows, inner], by an operand of choices, places or
/// offsets.
class ExpertRows : LoopEmitter {
public:
  /// With `counts` the kernel's third argument counts the rows of the result.
  ExpertRows(Operation *op, bool counts);

  static constexpr int64_t threads = 128;
  /// Returns true for the ops that have such a kernel.
  static bool isFor(Operation *op) {
    return isa_and_present<nn::TakeRowsOp, nn::SumRowsOp, nn::RepeatRowsOp, nn::SumGroupsOp>(op);
  }
  int64_t getNumBlocks() const { return llvm::divideCeil(getNumItems(), threads); }
  /// Fills the function, whose arguments are the buffers.
  void emit(func::FuncOp kernel);

private:
  int64_t getNumItems() const { return rows * inner / std::max<int64_t>(width, 1); }
  /// Some elements of an input row.
  Value load(Value row);
  /// The sums of `count` rows, of which `getRow` names some, in their order. A row is read in any
  /// case, and counts where it `exists`.
  struct Term {
    Value row, exists;
  };
  Value sum(Value count, int64_t atOnce, function_ref<Term(Value)> getRow);
  /// The elements of a row of the result, as the result stores them.
  Value takeRow(nn::TakeRowsOp take, Value row);
  Value sumChoices(Value row);
  Value repeatRow(Value row);
  Value sumExpert(Value expert);

  Operation *op;
  bool counts;
  int64_t rows, inner, width;
  Type element, compute;
  Value input, numbers, column;
};
} // namespace

ExpertRows::ExpertRows(Operation *op, bool counts)
    : LoopEmitter(op->getContext()), op(op), counts(counts), element(elementOf(op->getOperand(0))),
      compute(getComputeType(element)) {
  // Rows are the first dimension, but for sums of choices: those are tokens, or one for each
  // choice.
  size_t tokens = 1;
  if (auto sum = dyn_cast<nn::SumRowsOp>(op))
    tokens = shapeOf(sum.getPlaces()).size() - (sum.getEach() ? 0 : 1);
  ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  rows = ShapedType::getNumElements(shape.take_front(tokens));
  inner = ShapedType::getNumElements(shape.drop_front(tokens));
  int64_t bytes = getRowStorageType(element).getIntOrFloatBitWidth() / 8;
  width = std::gcd(inner, 16 / bytes);
  // A sum of all rows of an expert takes long, and should have many threads.
  constexpr int64_t leastItems = 1 << 15;
  while (isa<nn::SumGroupsOp>(op) && width > 1 && getNumItems() < leastItems)
    width /= 2;
}

Value ExpertRows::load(Value row) {
  auto type = VectorType::get(width, cast<MemRefType>(input.getType()).getElementType());
  return vector::LoadOp::create(b, type, input, add(mul(row, inner), column));
}

Value ExpertRows::sum(Value count, int64_t atOnce, function_ref<Term(Value)> getRow) {
  auto type = VectorType::get(width, compute);
  Value zero = emitConstant(b, type, 0);
  auto addSome = [&](Value first, ValueRange known) {
    SmallVector<Term> terms;
    SmallVector<Value> loaded;
    for (int64_t i = 0; i < atOnce; ++i) {
      Value number = add(first, i), last = sub(count, getIndex(1));
      terms.push_back(getRow(min(number, last)));
      if (atOnce > 1)
        terms.back().exists = both(terms.back().exists, isBelow(number, count));
      loaded.push_back(load(terms.back().row));
    }
    Value sums = known.front();
    for (auto [term, elements] : llvm::zip_equal(terms, loaded)) {
      Value more = emitCast(b, fromRowStorage(b, elements, element), compute);
      if (term.exists)
        more = arith::SelectOp::create(b, term.exists, more, zero);
      sums = arith::AddFOp::create(b, sums, more);
    }
    return SmallVector<Value>{sums};
  };
  return loop(getIndex(0), count, atOnce, zero, addSome).front();
}

Value ExpertRows::takeRow(nn::TakeRowsOp take, Value row) {
  // Rows that do not exist are those of the first token.
  Value choice = max(loadIndex(b, numbers, row), getIndex(0));
  return load(div(choice, take.getEach() ? 1 : take.getGroup()));
}

Value ExpertRows::sumChoices(Value row) {
  int64_t numPlaces = ShapedType::getNumElements(shapeOf(op->getOperand(1)));
  int64_t choices = numPlaces / rows, most = 8;
  return sum(getIndex(choices), std::clamp<int64_t>(choices, 1, most), [&](Value choice) {
    Value place = loadIndex(b, numbers, add(mul(row, choices), choice)), none = getIndex(0);
    Value exists = arith::CmpIOp::create(b, arith::CmpIPredicate::sge, place, none);
    return Term{max(place, none), exists};
  });
}

Value ExpertRows::repeatRow(Value row) {
  int64_t experts = shapeOf(op->getOperand(0)).front();
  Value expert = emitExpertOfRow(b, numbers, experts, row);
  if (counts)
    return load(expert);
  return choose(
             isBelow(expert, getIndex(experts)), [&] { return SmallVector<Value>{load(expert)}; },
             [&] {
               auto type =
                   VectorType::get(width, cast<MemRefType>(input.getType()).getElementType());
               return SmallVector<Value>{emitConstant(b, type, 0)};
             })
      .front();
}

Value ExpertRows::sumExpert(Value expert) {
  constexpr int64_t atOnce = 8;
  Value first = emitFirstRow(b, numbers, expert), end = emitFirstRow(b, numbers, add(expert, 1));
  return sum(sub(end, first), atOnce, [&](Value i) { return Term{add(first, i), Value()}; });
}

void ExpertRows::emit(func::FuncOp kernel) {
  b.setInsertionPointToStart(&kernel.getBody().front());
  input = kernel.getArgument(0);
  numbers = kernel.getArgument(1);
  Value existing;
  if (counts && rows > 0)
    existing = emitExistingItems(b, emitExistingRows(b, kernel.getArgument(2), rows), rows, getNumItems());
  auto emitElements = [&](Value item) {
    Value to = mul(item, width), row = div(to, inner);
    column = rem(to, inner);
    Value result;
    if (auto take = dyn_cast<nn::TakeRowsOp>(op))
      result = takeRow(take, row);
    else if (isa<nn::RepeatRowsOp>(op))
      result = repeatRow(row);
    else {
      Value sums = isa<nn::SumRowsOp>(op) ? sumChoices(row) : sumExpert(row);
      result = toRowStorage(b, emitCast(b, sums, elementOf(op->getResult(0))));
    }
    vector::StoreOp::create(b, result, kernel.getArgument(counts ? 3 : 2), to);
  };
  emitForItem(b, getNumItems(), getNumBlocks(), threads, emitElements, existing);
}

std::optional<KernelInfo> GpuKernelBuilder::buildExpertRows(rt::KernelOp launch) {
  Operation *op = getSingleOp(launch);
  if (!ExpertRows::isFor(op))
    return std::nullopt;
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs.assign(op->operand_begin(), op->operand_end());
  ExpertRows emitter(op, addCounter(info, launch));
  info.items = emitter.getNumBlocks();
  info.grain = ExpertRows::threads;
  func::FuncOp kernel = begin(launch, info.inputs, /*sharedBytes=*/0, ExpertRows::threads);
  emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

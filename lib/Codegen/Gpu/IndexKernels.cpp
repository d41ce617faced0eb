//===- IndexKernels.cpp - rows and elements by index, on GPUs -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads: a thread moves some consecutive elements of a row. An index out of range writes its position
// to the fault word of the launch, and gives zeros.
//
// Sums: a block owns a row of the result, and goes over all indices, as many as it has threads at a
// time. It adds the rows whose index is its own, in their order. A thread owns an element of the
// result where each element has an index of its own.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/ExpertRows.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"

#include "meshwright/dialects/Nn/TableRows.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <limits>
#include <numeric>

using namespace mlir;

namespace meshwright::lower {

namespace {
/// Data [outer, size, inner], indices [count], or [outer, count, inner] if there is one for each
/// element, and a result [outer, count, inner]. Data has the rows from `offset` on of a table of
/// `total` rows, and other rows of the table are zeros.
struct Gather {
  Value data, indices, offset;
  int64_t outer, size, inner, count, total;
  bool isElementwise;
};
} // namespace

static std::optional<Gather> getGather(Operation *op) {
  auto along = [&](Value data, Value indices, int64_t dim, bool isElementwise) {
    ArrayRef<int64_t> shape = shapeOf(data);
    int64_t count = isElementwise ? shapeOf(indices)[dim]
                                  : ShapedType::getNumElements(shapeOf(indices));
    return Gather{data,
                  indices,
                  Value(),
                  ShapedType::getNumElements(shape.take_front(dim)),
                  shape[dim],
                  ShapedType::getNumElements(shape.drop_front(dim + 1)),
                  count,
                  shape[dim],
                  isElementwise};
  };
  if (auto gather = dyn_cast<nn::GatherOp>(op))
    return along(gather.getData(), gather.getIndices(), gather.getDim(), false);
  if (auto take = dyn_cast<nn::TakeAlongOp>(op))
    return along(take.getData(), take.getIndices(), take.getDim(), true);
  auto embedding = dyn_cast<nn::EmbeddingOp>(op);
  if (!embedding)
    return std::nullopt;
  Gather gather = along(embedding.getTable(), embedding.getIds(), 0, false);
  gather.offset = embedding.getOffset();
  gather.total = nn::getTableRows(embedding).value_or(std::numeric_limits<int64_t>::max());
  return gather;
}

static Value loadIndex(Builder &b, Value buffer, Value at) {
  Value value = memref::LoadOp::create(b, buffer, at);
  return emitCast(b, value, b.getI64Type());
}

/// Emits the item: `width` elements of the result. `arguments` are the data, the indices, the
/// offset if there is one, the result and the fault word.
static void emitGather(Builder &b, const Gather &gather, Value item, int64_t width,
                       ValueRange arguments) {
  Value data = arguments[0], indices = arguments[1], fault = arguments.back();
  Value result = arguments[arguments.size() - 2];
  Value to = arith::MulIOp::create(b, item, emitIndex(b, width)), rest = to;
  Value column = emitSplit(b, rest, gather.inner), outer = rest;
  Value row = emitSplit(b, outer, gather.count);
  Value position = gather.isElementwise ? to : row;
  Value index = loadIndex(b, indices, position);
  auto isBelow = [&](Value value, int64_t bound) -> Value {
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ult, value,
                                 arith::ConstantOp::create(b, b.getI64IntegerAttr(bound)));
  };
  Value isInside = isBelow(index, gather.total);
  emitFault(b, isInside, fault, position);
  if (gather.offset) {
    index = arith::SubIOp::create(b, index, loadIndex(b, arguments[2], emitIndex(b, 0)));
    isInside = arith::AndIOp::create(b, isInside, isBelow(index, gather.size));
  } else if (gather.total > gather.size) {
    isInside = arith::AndIOp::create(b, isInside, isBelow(index, gather.size));
  }
  auto type = VectorType::get(width, cast<MemRefType>(data.getType()).getElementType());
  auto choice = scf::IfOp::create(b, type, isInside, /*withElseRegion=*/true);
  {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(choice.thenBlock());
    Value from = arith::MulIOp::create(b, outer, emitIndex(b, gather.size));
    from = arith::AddIOp::create(b, from,
                                 arith::IndexCastOp::create(b, b.getIndexType(), index));
    from = arith::MulIOp::create(b, from, emitIndex(b, gather.inner));
    from = arith::AddIOp::create(b, from, column);
    scf::YieldOp::create(b, vector::LoadOp::create(b, type, data, from).getResult());
    b.setInsertionPointToStart(choice.elseBlock());
    scf::YieldOp::create(b, emitConstant(b, type, 0));
  }
  vector::StoreOp::create(b, choice.getResult(0), result, to);
}

std::optional<KernelInfo> GpuKernelBuilder::buildIndices(rt::KernelOp launch) {
  Operation *op = getSingleOp(launch);
  std::optional<Gather> gather = op ? getGather(op) : std::nullopt;
  if (!gather)
    return std::nullopt;
  constexpr int64_t threads = 128;
  Value result = launch.getResult(0);
  int64_t count = cast<RankedTensorType>(result.getType()).getNumElements();
  int64_t bytes = count ? getBytes(result) / count : 1;
  // Each element of a take_along has an index of its own.
  int64_t width = gather->isElementwise ? 1 : std::gcd(gather->inner, 16 / bytes);
  int64_t items = count / std::max<int64_t>(width, 1);
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs = {gather->data, gather->indices};
  if (gather->offset)
    info.inputs.push_back(gather->offset);
  info.items = llvm::divideCeil(items, threads);
  info.grain = threads;
  info.bytes = 2 * getBytes(result) + getBytes(gather->indices);
  info.checksIndices = true;
  if (items > 0)
    addCounter(info, launch);
  func::FuncOp kernel = begin(launch, info.inputs, /*sharedBytes=*/0, threads, /*hasFault=*/true);
  Builder b = Builder::atBlockEnd(kernel.getLoc(), &kernel.getBody().front());
  Value existing;
  if (info.rows) {
    Value offsets = kernel.getArgument(info.counter);
    existing = emitExistingItems(b, emitExistingRows(b, offsets, info.rows), info.rows, items);
  }
  emitForItem(
      b, items, info.items, threads,
      [&](Value item) { emitGather(b, *gather, item, width, kernel.getArguments()); }, existing);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

//===----------------------------------------------------------------------===//
// Sums by index
//===----------------------------------------------------------------------===//

namespace {
/// Updates [outer, count, inner] are summed into a result [outer, size, inner]. The fields are those
/// of the gather that it is the transpose of.
class ScatterAdd : LoopEmitter {
public:
  explicit ScatterAdd(nn::ScatterAddOp op);

  static constexpr int64_t threads = 128;
  int64_t getNumBlocks() const;
  int64_t getSharedBytes() const { return gather.isElementwise ? 0 : threads * sizeof(int32_t); }
  const SmallVector<Value> &getInputs() const { return inputs; }
  /// Fills the function, whose arguments are the buffers, the fault word and the shared memory.
  void emit(func::FuncOp kernel);

private:
  void emitRow();
  void emitElement();
  /// Returns true if the index is that of the row. `checks`, if it is true, notes an index that is
  /// out of range.
  Value isRow(Value position, Value row, Value checks);
  SmallVector<Value> accumulate(ValueRange sums, Value from);

  Gather gather;
  SmallVector<Value> inputs;
  Type element, compute;
  /// Consecutive elements of a thread, and the blocks of a row.
  int64_t width = 1, blocksOfRow = 1;
  Value updates, indices, offset, result, fault, shared;
};
} // namespace

ScatterAdd::ScatterAdd(nn::ScatterAddOp op)
    : LoopEmitter(op.getContext()), inputs(op->getOperands()),
      element(getElementTypeOrSelf(op.getUpdates().getType())),
      compute(getElementTypeOrSelf(op.getResult().getType())) {
  ArrayRef<int64_t> shape = shapeOf(op.getUpdates());
  int64_t dim = op.getDim(), indexed = op.getNumIndexedDims();
  gather = {op.getUpdates(),
            op.getIndices(),
            op.getOffset(),
            ShapedType::getNumElements(shape.take_front(dim)),
            shapeOf(op.getResult())[dim],
            ShapedType::getNumElements(shape.drop_front(dim + indexed)),
            ShapedType::getNumElements(shape.slice(dim, indexed)),
            nn::getTableRows(op).value_or(std::numeric_limits<int64_t>::max()),
            op.getAlong()};
  if (!gather.isElementwise) {
    width = std::gcd(gather.inner, 16 / (element.getIntOrFloatBitWidth() / 8));
    blocksOfRow = llvm::divideCeil(gather.inner, threads * std::max<int64_t>(width, 1));
  }
}

int64_t ScatterAdd::getNumBlocks() const {
  int64_t rows = gather.outer * gather.size;
  return gather.isElementwise ? llvm::divideCeil(rows * gather.inner, threads) : rows * blocksOfRow;
}

Value ScatterAdd::isRow(Value position, Value row, Value checks) {
  Value index = loadIndex(b, indices, position);
  Value limit = arith::ConstantOp::create(b, b.getI64IntegerAttr(gather.total));
  Value isInside = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, index, limit);
  when(checks, [&] { emitFault(b, isInside, fault, position); });
  if (offset)
    index = arith::SubIOp::create(b, index, loadIndex(b, offset, getIndex(0)));
  Value own = arith::IndexCastOp::create(b, b.getI64Type(), row);
  return both(isInside, arith::CmpIOp::create(b, arith::CmpIPredicate::eq, index, own));
}

SmallVector<Value> ScatterAdd::accumulate(ValueRange sums, Value from) {
  auto type = VectorType::get(width, cast<MemRefType>(updates.getType()).getElementType());
  Value terms = vector::LoadOp::create(b, type, updates, from);
  terms = emitCast(b, fromRowStorage(b, terms, element), compute);
  return {arith::AddFOp::create(b, sums.front(), terms)};
}

void ScatterAdd::emitRow() {
  Value thread = emitThread(b, threads), block = emitBlock(b, getNumBlocks());
  Value inRow = rem(block, blocksOfRow), number = div(block, blocksOfRow);
  Value row = rem(number, gather.size), outer = div(number, gather.size);
  Value column = mul(add(mul(inRow, threads), thread), width);
  Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, block, getIndex(0));
  Value exists = isBelow(column, getIndex(gather.inner));
  Value flags = emitShared(b, shared, 0, threads, b.getI32Type());
  Value zero = emitConstant(b, b.getI32Type(), 0);
  SmallVector<Value> sums = {emitConstant(b, VectorType::get(width, compute), 0)};
  auto emitGroup = [&](Value first, ValueRange known) {
    Value position = add(first, thread);
    Value flag = choose(
                     isBelow(position, getIndex(gather.count)),
                     [&] { return SmallVector<Value>{isRow(position, row, isFirst)}; },
                     [&] { return SmallVector<Value>{emitConstant(b, b.getI1Type(), 0)}; })
                     .front();
    return choose(
        emitAny(b, flag),
        [&] {
          memref::StoreOp::create(b, arith::ExtUIOp::create(b, b.getI32Type(), flag), flags, thread);
          emitBarrier(b);
          SmallVector<Value> after =
              loop(getIndex(0), getIndex(threads), 1, known, [&](Value i, ValueRange before) {
                Value word = memref::LoadOp::create(b, flags, i);
                Value adds = both(arith::CmpIOp::create(b, arith::CmpIPredicate::ne, word, zero),
                                  exists);
                Value at = add(mul(outer, gather.count), add(first, i));
                return choose(
                    adds, [&] { return accumulate(before, add(mul(at, gather.inner), column)); },
                    [&] { return llvm::to_vector(before); });
              });
          emitBarrier(b);
          return after;
        },
        [&] { return llvm::to_vector(known); });
  };
  sums = loop(getIndex(0), getIndex(gather.count), threads, sums, emitGroup);
  when(exists, [&] {
    vector::StoreOp::create(b, sums.front(), result, add(mul(number, gather.inner), column));
  });
}

void ScatterAdd::emitElement() {
  int64_t count = gather.outer * gather.size * gather.inner;
  emitForItem(b, count, getNumBlocks(), threads, [&](Value item) {
    Value column = rem(item, gather.inner), rest = div(item, gather.inner);
    Value row = rem(rest, gather.size), outer = div(rest, gather.size);
    Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, row, getIndex(0));
    SmallVector<Value> sums = {emitConstant(b, VectorType::get(1, compute), 0)};
    sums = loop(getIndex(0), getIndex(gather.count), 1, sums, [&](Value i, ValueRange known) {
      Value at = add(mul(add(mul(outer, gather.count), i), gather.inner), column);
      return choose(
          isRow(at, row, isFirst), [&] { return accumulate(known, at); },
          [&] { return llvm::to_vector(known); });
    });
    vector::StoreOp::create(b, sums.front(), result, item);
  });
}

void ScatterAdd::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = 0;
  updates = entry.getArgument(next++);
  indices = entry.getArgument(next++);
  if (gather.offset)
    offset = entry.getArgument(next++);
  result = entry.getArgument(next++);
  fault = entry.getArgument(next++);
  if (gather.isElementwise)
    return emitElement();
  shared = entry.getArgument(next);
  emitRow();
}

std::optional<KernelInfo> GpuKernelBuilder::buildScatterAdd(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::ScatterAddOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  ScatterAdd emitter(op);
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs = emitter.getInputs();
  info.items = emitter.getNumBlocks();
  info.grain = ScatterAdd::threads;
  info.checksIndices = true;
  func::FuncOp kernel = begin(launch, info.inputs, emitter.getSharedBytes(), ScatterAdd::threads,
                              /*hasFault=*/true);
  // 128 registers for a thread, so that ptxas spills none.
  kernel->setAttr(kBlocksAttr, IntegerAttr::get(IntegerType::get(launch.getContext(), 64), 4));
  if (info.items > 0)
    emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

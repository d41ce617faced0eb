//===- LimitKernel.cpp - choices that an expert takes, on GPUs ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block owns some experts, whose number is not known: those of one remainder. It goes over all choices
// twice for each of them that occurs. Its warps share the choices, each some consecutive ones. First it counts
// those of the expert in each warp, and finds the next one that occurs. Then it numbers them, in their order.
// So no block waits for another one, and the work is that of a few reads of all choices for each expert.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"
#include "meshwright/lib/Codegen/LoopEmitter.h"
#include "meshwright/lib/Codegen/RowEmitter.h"
#include "meshwright/lib/Support/TensorValues.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

using Compare = arith::CmpIPredicate;

namespace {
class Limit : LoopEmitter {
public:
  explicit Limit(nn::LimitOp op);

  int64_t getNumThreads() const { return warps * Chip::warpSize; }
  int64_t getNumBlocks() const { return blocks; }
  int64_t getSharedBytes() const { return warps * 2 * sizeof(int64_t); }
  /// Fills the function, whose arguments are the buffers and the shared memory.
  void emit(func::FuncOp kernel);

private:
  Value compare(Compare how, Value a, Value c) { return arith::CmpIOp::create(b, how, a, c); }
  Value getInteger(int64_t value) { return arith::ConstantOp::create(b, b.getI64IntegerAttr(value)); }
  Value widen(Value word) { return arith::IndexCastUIOp::create(b, b.getIndexType(), word); }
  /// The choice of this lane in a turn of its warp, and whether there is one.
  std::pair<Value, Value> getChoice(Value turn);
  Value load(Value number) { return emitCast(b, memref::LoadOp::create(b, indices, number), b.getI64Type()); }
  /// Keeps the first choices of an expert. Returns the next expert of the block, or `kNone`.
  Value limit(Value expert);
  /// The number of choices of the expert before this warp, and the next expert of all warps.
  std::pair<Value, Value> join(Value counted, Value next);
  /// Choices of no expert stay.
  void keepOthers();

  /// More than all experts.
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t count, capacity, warps, turns, blocks;
  Value indices, result, shared, warp, lane, block;
};
} // namespace

Limit::Limit(nn::LimitOp op)
    : LoopEmitter(op.getContext()), count(ShapedType::getNumElements(shapeOf(op.getIndices()))),
      capacity(op.getCapacity()) {
  constexpr int64_t mostWarps = 16, fewest = 32, most = 1024;
  int64_t chunks = llvm::divideCeil(count, Chip::warpSize);
  warps = std::clamp<int64_t>(llvm::PowerOf2Ceil(chunks), 1, mostWarps);
  turns = llvm::divideCeil(chunks, warps);
  // About as many as experts, which take all choices or some more. More experts share blocks.
  int64_t experts = llvm::PowerOf2Ceil(llvm::divideCeil(count, std::max<int64_t>(capacity, 1)));
  blocks = count == 0 ? 0 : std::clamp<int64_t>(experts, fewest, most);
}

std::pair<Value, Value> Limit::getChoice(Value turn) {
  Value number = add(mul(add(mul(warp, turns), turn), Chip::warpSize), lane);
  return {min(number, count - 1), isBelow(number, getIndex(count))};
}

std::pair<Value, Value> Limit::join(Value counted, Value next) {
  Value own = mul(warp, 2);
  when(compare(Compare::eq, lane, getIndex(0)), [&] {
    memref::StoreOp::create(b, arith::IndexCastOp::create(b, b.getI64Type(), counted), shared, own);
    memref::StoreOp::create(b, next, shared, add(own, 1));
  });
  emitBarrier(b);
  Value none[] = {getInteger(0), getInteger(kNone)};
  SmallVector<Value> found = loop(getIndex(0), getIndex(warps), 1, none, [&](Value other, ValueRange known) {
    Value number = memref::LoadOp::create(b, shared, mul(other, 2));
    number = arith::SelectOp::create(b, isBelow(other, warp), number, getInteger(0));
    return SmallVector<Value>{
        arith::AddIOp::create(b, known[0], number),
        arith::MinSIOp::create(b, known[1], memref::LoadOp::create(b, shared, add(mul(other, 2), 1)))};
  });
  emitBarrier(b);
  return {arith::IndexCastOp::create(b, b.getIndexType(), found[0]), found[1]};
}

Value Limit::limit(Value expert) {
  Value none[] = {getIndex(0), getInteger(kNone)};
  SmallVector<Value> ofWarp = loop(getIndex(0), getIndex(turns), 1, none, [&](Value turn, ValueRange known) {
    auto [number, exists] = getChoice(turn);
    Value chosen = load(number);
    Value ballot = emitBallot(b, both(exists, compare(Compare::eq, chosen, expert)));
    Value rest = arith::AndIOp::create(b, chosen, getInteger(blocks - 1));
    Value isNext = both(compare(Compare::sgt, chosen, expert),
                        compare(Compare::eq, rest, arith::AndIOp::create(b, expert, getInteger(blocks - 1))));
    Value next = arith::SelectOp::create(b, both(exists, isNext), chosen, known[1]);
    return SmallVector<Value>{add(known[0], widen(emitBitCount(b, ballot))),
                              arith::MinSIOp::create(b, known[1], next)};
  });
  Value next = emitLaneReduction(b, ofWarp[1], Chip::warpSize,
                                 [&](Value x, Value y) { return arith::MinSIOp::create(b, x, y); });
  auto [before, nextOfAll] = join(ofWarp[0], next);
  loop(getIndex(0), getIndex(turns), 1, before, [&](Value turn, ValueRange known) {
    auto [number, exists] = getChoice(turn);
    Value isOwn = both(exists, compare(Compare::eq, load(number), expert));
    Value ballot = emitBallot(b, isOwn);
    Value place = add(known.front(), widen(emitBitCountBefore(b, ballot)));
    when(isOwn, [&, number = number] {
      Value taken = memref::LoadOp::create(b, indices, number);
      Value none = emitConstant(b, taken.getType(), -1);
      Value kept = arith::SelectOp::create(b, isBelow(place, getIndex(capacity)), taken, none);
      memref::StoreOp::create(b, kept, result, number);
    });
    return SmallVector<Value>{add(known.front(), widen(emitBitCount(b, ballot)))};
  });
  return nextOfAll;
}

void Limit::keepOthers() {
  loop(getIndex(0), getIndex(turns), 1, [&](Value turn) {
    auto [number, exists] = getChoice(turn);
    Value isNone = both(exists, compare(Compare::slt, load(number), getInteger(0)));
    when(isNone, [&, number = number] {
      memref::StoreOp::create(b, memref::LoadOp::create(b, indices, number), result, number);
    });
  });
}

void Limit::emit(func::FuncOp kernel) {
  b.setInsertionPointToStart(&kernel.getBody().front());
  indices = kernel.getArgument(0);
  result = kernel.getArgument(1);
  shared = emitShared(b, kernel.getArgument(2), 0, 2 * warps, b.getI64Type());
  Value thread = emitThread(b, getNumThreads());
  warp = div(thread, Chip::warpSize);
  lane = rem(thread, Chip::warpSize);
  block = emitBlock(b, blocks);
  when(compare(Compare::eq, block, getIndex(0)), [&] { keepOthers(); });
  Value first = arith::IndexCastOp::create(b, b.getI64Type(), block);
  scf::WhileOp::create(
      b, TypeRange{b.getI64Type()}, ValueRange{first},
      [&](OpBuilder &, Location, ValueRange next) {
        Value exists = compare(Compare::ne, next.front(), getInteger(kNone));
        scf::ConditionOp::create(b, exists, next);
      },
      [&](OpBuilder &, Location, ValueRange next) { scf::YieldOp::create(b, ValueRange{limit(next.front())}); });
}

std::optional<KernelInfo> GpuKernelBuilder::buildLimit(rt::KernelOp launch) {
  auto op = dyn_cast_if_present<nn::LimitOp>(getSingleOp(launch));
  if (!op)
    return std::nullopt;
  Limit emitter(op);
  KernelInfo info;
  info.kind = MW_RT_MOVE;
  info.inputs = {op.getIndices()};
  info.items = emitter.getNumBlocks();
  info.grain = emitter.getNumThreads();
  func::FuncOp kernel = begin(launch, info.inputs, emitter.getSharedBytes(), info.grain);
  if (info.items > 0)
    emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

} // namespace meshwright::lower

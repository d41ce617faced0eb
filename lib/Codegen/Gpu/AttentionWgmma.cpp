//===- AttentionWgmma.cpp - attention by wgmma, on GPUs -------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block has three warpgroups. Each of the first two computes 64 rows by wgmma: scores and the result
// stay in registers, and shares go from there to the product with values. A warp of the third one
// copies tiles of queries, keys and values to shared memory, by tensor maps.
//
// Tiles of keys and values are in turn in two slots. For each slot two barriers exist: one that
// the tile is there, and one that all warps have read it. Their phases follow from the number of
// the tile.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuAsync.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;

namespace meshwright::lower {

namespace {
/// Two tiles of keys, or of values, and their barriers.
struct Slots {
  int64_t offset, panels, features, tileBytes;
  /// Offsets of barriers: of tiles that are there, and of tiles that are read.
  int64_t filled, read;
  /// The tensor map.
  Value map;
};

class AttentionWgmma final : public AttentionFragments {
public:
  AttentionWgmma(const AttentionLaunch &launch, const AttentionTilePlan &plan);

  int64_t getSharedBytes() const override { return sharedBytes; }

private:
  void emitBlock(Value block) override;
  void emitQueries() override;
  SmallVector<Value> emitProducts() override;
  SmallVector<Value> emitValues(ValueRange shares, ValueRange scales, ValueRange result) override;
  void emitHidden() override;
  void emitResult(ValueRange factors, ValueRange result) override {
    // It takes the place of queries, which other warps may still read.
    synchronize();
    AttentionFragments::emitResult(factors, result);
  }
  void synchronize() override { emitBarrier(b, barrierOfGroup(), plan.threads); }
  Value isAny(Value value) override {
    return emitAny(b, value, barrierOfGroup(), plan.threads);
  }
  Value getResultTile() override {
    auto type = MemRefType::get({groupRows * resultStride}, stored, MemRefLayoutAttrInterface(),
                                b.getI64IntegerAttr(kSharedSpace));
    return memref::ViewOp::create(b, type, shared, mul(group, groupBytes), ValueRange());
  }

  /// Returns true if the tile in which keys end, by their number in memory, has others behind them.
  bool hasLastKeys() const { return lengths && !plan.hasPositions; }
  void initBarriers();
  void emitCopies(Value first, Value last);
  void emitTileCopy(const Slots &slots, Value filled);
  void emitLastKeys();
  void emitGroup(std::pair<Value, Value> range);

  Value word(Value index) { return arith::IndexCastOp::create(b, b.getI32Type(), index); }
  Value word(int64_t value) { return emitConstant(b, b.getI32Type(), value); }
  /// An address in shared memory: `offset` from the begin, and the tile's number modulo 2 times
  /// `stride` from there.
  Value at(int64_t offset) { return arith::AddIOp::create(b, base, word(offset)); }
  Value atSlot(int64_t offset, int64_t stride) {
    return arith::AddIOp::create(b, at(offset), word(mul(rem(getTile(), numSlots), stride)));
  }
  /// The number of the tile, and the phase of its slot: 0, 1, 0, ...
  Value getTile() { return div(sub(firstKey, firstOfBlock), plan.blockKeys); }
  Value getPhase() { return word(rem(div(getTile(), numSlots), 2)); }
  Value barrierOfGroup() { return word(add(group, 1)); }
  void wait(const Slots &slots) { emitWait(b, atSlot(slots.filled, wordBytes), getPhase()); }
  void release(const Slots &slots) {
    emitArrival(b, atSlot(slots.read, wordBytes),
                compare(arith::CmpIPredicate::eq, lane(), getIndex(0)));
  }

  static constexpr int64_t numSlots = 2, numGroups = 2, wordBytes = 8;
  /// The registers of a thread that copies, and of one that computes: 3 * 168 together, which a
  /// block of 384 threads may have.
  static constexpr int64_t copyRegisters = 40, groupRegisters = 232;
  int64_t queryPanels, groupBytes, queryBarrier, lastBarrier, sharedBytes;
  Slots keys, values;
  Value base, queryMap, group, firstOfBlock;
};
} // namespace

static int64_t countPanels(int64_t columns) { return llvm::divideCeil(columns, kPanelColumns); }

AttentionWgmma::AttentionWgmma(const AttentionLaunch &launch, const AttentionTilePlan &plan)
    : AttentionFragments(launch, plan) {
  queryPanels = countPanels(plan.features);
  groupBytes = llvm::alignTo(std::max(queryPanels * groupRows * kPanelRowBytes,
                                      groupRows * resultStride * bytes),
                             kPanelAlignment);
  int64_t offset = numGroups * groupBytes;
  for (auto [slots, features] : {std::pair(&keys, plan.features), {&values, plan.valueFeatures}}) {
    slots->offset = offset;
    slots->features = features;
    slots->panels = countPanels(features);
    slots->tileBytes = slots->panels * plan.blockKeys * kPanelRowBytes;
    offset += numSlots * slots->tileBytes;
  }
  for (Slots *slots : {&keys, &values}) {
    slots->filled = offset;
    slots->read = offset + numSlots * wordBytes;
    offset += 2 * numSlots * wordBytes;
  }
  queryBarrier = offset;
  lastBarrier = queryBarrier + wordBytes;
  sharedBytes = lastBarrier + wordBytes;
}

SmallVector<mw_rt_tensor_map> getTensorMaps(const AttentionTilePlan &plan) {
  mw_rt_tensor_map queries = {};
  queries.buffer = 0;
  queries.dtype = plan.element.isBF16() ? MW_BF16 : MW_F16;
  queries.columns = plan.features;
  queries.rows = queries.matrix_rows = plan.rows;
  queries.matrices = plan.units;
  queries.box_columns = kPanelColumns;
  queries.box_rows = plan.blockRows / 2;
  mw_rt_tensor_map keys = queries;
  keys.buffer = 1;
  keys.rows = plan.keys;
  keys.matrix_rows = plan.keyRows;
  keys.matrices = plan.batch * plan.keyHeads;
  keys.box_rows = plan.blockKeys;
  mw_rt_tensor_map values = keys;
  values.buffer = 2;
  values.columns = plan.valueFeatures;
  return {queries, keys, values};
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

void AttentionWgmma::initBarriers() {
  Value isFirst = compare(arith::CmpIPredicate::eq, thread, getIndex(0));
  constexpr int64_t warps = numGroups * kGroupThreads / 32;
  emitBarrierInit(b, at(queryBarrier), 1, isFirst);
  if (hasLastKeys())
    emitBarrierInit(b, at(lastBarrier), 1, isFirst);
  for (const Slots &slots : {keys, values})
    for (int64_t i = 0; i < numSlots; ++i) {
      emitBarrierInit(b, at(slots.filled + i * wordBytes), 1, isFirst);
      emitBarrierInit(b, at(slots.read + i * wordBytes), warps, isFirst);
    }
  emitBarrierFence(b);
  emitBarrier(b);
}

void AttentionWgmma::emitBlock(Value block) {
  auto arguments = shared.getParentBlock()->getArguments().drop_back().take_back(3);
  Value *maps[] = {&queryMap, &keys.map, &values.map};
  for (auto [i, map] : llvm::enumerate(maps))
    *map = arith::IndexCastOp::create(
        b, b.getI64Type(), memref::ExtractAlignedPointerAsIndexOp::create(b, arguments[i]));
  base = emitSharedAddress(b, shared);
  locate(block);
  startBatch();
  auto range = getKeyRange();
  firstOfBlock = range.first;
  initBarriers();
  group = div(thread, kGroupThreads);
  when(
      compare(arith::CmpIPredicate::eq, group, getIndex(numGroups)),
      [&] {
        emitRegisterCount(b, copyRegisters, /*takes=*/false);
        when(compare(arith::CmpIPredicate::eq, warp(), getIndex(numGroups * kGroupThreads / 32)),
             [&] { emitCopies(range.first, range.second); });
      },
      [&] { emitGroup(range); });
}

void AttentionWgmma::emitCopies(Value first, Value last) {
  Value isFirst = compare(arith::CmpIPredicate::eq, lane(), getIndex(0));
  when(isFirst, [&] {
    emitArrivalOfCopies(b, at(queryBarrier),
                        numGroups * queryPanels * groupRows * kPanelRowBytes);
    for (int64_t i = 0; i < numGroups; ++i)
      for (int64_t panel = 0; panel < queryPanels; ++panel)
        emitBoxCopy(b, at(i * groupBytes + panel * groupRows * kPanelRowBytes), queryMap,
                    {word(panel * kPanelColumns), word(add(firstRow, i * groupRows)), word(unit)},
                    at(queryBarrier));
  });
  loop(first, last, plan.blockKeys, [&](Value key) {
    firstKey = key;
    Value isWhole, filled = atSlot(values.filled, wordBytes);
    if (hasLastKeys()) {
      isWhole = compare(arith::CmpIPredicate::sle, add(key, plan.blockKeys), numKeys);
      filled = arith::SelectOp::create(b, isWhole, filled, at(lastBarrier));
    }
    when(isFirst, [&] {
      emitTileCopy(keys, atSlot(keys.filled, wordBytes));
      emitTileCopy(values, filled);
    });
    if (isWhole)
      when(isWhole, [] {}, [&] { emitLastKeys(); });
  });
}

void AttentionWgmma::emitTileCopy(const Slots &slots, Value filled) {
  // The first tiles of both slots wait for nothing: that is the phase before the first.
  Value before = arith::XOrIOp::create(b, getPhase(), word(1));
  emitWait(b, atSlot(slots.read, wordBytes), before);
  emitArrivalOfCopies(b, filled, slots.tileBytes);
  for (int64_t panel = 0; panel < slots.panels; ++panel)
    emitBoxCopy(b,
                atSlot(slots.offset + panel * plan.blockKeys * kPanelRowBytes, slots.tileBytes),
                slots.map, {word(panel * kPanelColumns), word(firstKey), word(keyUnit)}, filled);
}

/// Clears the values behind the length in the last tile, when they are there: a share of zero would not
/// hide a NaN. Then the tile is there for the others.
void AttentionWgmma::emitLastKeys() {
  emitWait(b, at(lastBarrier), word(int64_t(0)));
  constexpr int64_t words = kPanelRowBytes / 4;
  auto type = MemRefType::get({values.panels * plan.blockKeys * words}, b.getI32Type(),
                              MemRefLayoutAttrInterface(), b.getI64IntegerAttr(kSharedSpace));
  Value start = add(mul(rem(getTile(), numSlots), values.tileBytes), values.offset);
  Value tile = memref::ViewOp::create(b, type, shared, start, ValueRange());
  Value first = add(mul(sub(numKeys, firstKey), words), lane()), zero = word(int64_t(0));
  for (int64_t panel = 0; panel < values.panels; ++panel)
    loop(first, getIndex(plan.blockKeys * words), 32, [&](Value at) {
      memref::StoreOp::create(b, zero, tile, add(at, panel * plan.blockKeys * words));
    });
  emitAsyncFence(b);
  emitWarpBarrier(b);
  emitArrival(b, atSlot(values.filled, wordBytes),
              compare(arith::CmpIPredicate::eq, lane(), getIndex(0)));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

void AttentionWgmma::emitGroup(std::pair<Value, Value> range) {
  emitRegisterCount(b, groupRegisters, /*takes=*/true);
  thread = rem(thread, kGroupThreads);
  firstRow = add(firstRow, mul(group, groupRows));
  startRows();
  emitQueries();
  emitKeys(range);
}

void AttentionWgmma::emitQueries() { emitWait(b, at(queryBarrier), word(int64_t(0))); }

SmallVector<Value> AttentionWgmma::emitProducts() {
  wait(keys);
  Value queries = arith::AddIOp::create(b, base, word(mul(group, groupBytes)));
  SmallVector<Value> sums =
      emitGroupProduct(b, plan.element, queries, groupRows, atSlot(keys.offset, keys.tileBytes),
                       plan.blockKeys, llvm::alignTo(plan.features, depth));
  release(keys);
  return getScores(sums);
}

SmallVector<Value> AttentionWgmma::emitValues(ValueRange shares, ValueRange scales,
                                              ValueRange result) {
  SmallVector<Value> left, sums = scale(result, scales);
  for (int64_t key = 0; key < plan.blockKeys; key += depth)
    llvm::append_range(left, getLeft(shares, key));
  wait(values);
  sums = emitGroupProduct(b, plan.element, left, atSlot(values.offset, values.tileBytes), sums);
  release(values);
  return sums;
}

void AttentionWgmma::emitHidden() {
  for (const Slots &slots : {keys, values}) {
    wait(slots);
    release(slots);
  }
}

std::unique_ptr<AttentionTiles> makeAttentionWgmma(const AttentionLaunch &launch,
                                                   const AttentionTilePlan &plan) {
  return std::make_unique<AttentionWgmma>(launch, plan);
}

} // namespace meshwright::lower

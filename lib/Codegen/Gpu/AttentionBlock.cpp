//===- AttentionBlock.cpp - a block of scores, on GPUs --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionBlock.h"

#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "meshwright-c/DeviceKernel.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/Support/MathExtras.h"

#include <cmath>
#include <limits>
#include <numeric>

using namespace mlir;

namespace meshwright::lower {

/// Returns true if wgmma and tensor maps serve a plan that mma.sync serves. Rows have to begin at multiples
/// of 16 bytes, and to fit in registers and shared memory. A block has 128 rows: half of them at
/// least should be queries, and the keys at least a tile.
static bool fitsWgmma(const AttentionShape &shape) {
  constexpr int64_t chunk = 8, mostFeatures = 256, leastRows = 64, leastKeys = 64;
  auto fits = [](int64_t features) {
    return features > 0 && features % chunk == 0 && features <= mostFeatures;
  };
  return fits(shape.features) && fits(shape.valueFeatures) && shape.keys >= leastKeys &&
         shape.getGroup() * shape.queries >= leastRows;
}

/// The fragments of longer queries do not fit in registers.
static bool fitsMma(const AttentionShape &shape) {
  constexpr int64_t mostFeatures = 256;
  return shape.element.getIntOrFloatBitWidth() == 16 && shape.features <= mostFeatures;
}

AttentionTilePlan::AttentionTilePlan(nn::ScoresOpInterface op, bool hasWgmma)
    : AttentionShape(op), rules(op), resultElement(element) {
  bool isGradient = isa<nn::AttentionGradOp>(op.getOperation());
  usesMma = !isGradient && fitsMma(*this);
  usesWgmma = usesMma && hasWgmma && fitsWgmma(*this);
  // A warpgroup copies, and two compute.
  blockThreads = usesWgmma ? 3 * threads : threads;
  rowsOfThread = usesMma ? 2 : 1;
  blockRows = usesWgmma ? 128 : usesMma ? 64 : 32;
  blockKeys = usesMma && features <= 128 ? 64 : 32;
  if (usesWgmma) {
    // Results, and what is known of each score besides its product, need registers.
    bool isWide = features > 128 || valueFeatures > 128;
    bool hasMore =
        hasPositions || op.getKeyPadding() || op.getBias() || op.getKvLengths() || op.getSoftCap();
    blockKeys = 128 / (isWide ? 2 : 1) / (hasMore ? 2 : 1);
  }
  cutFeatures();
  headsPerUnit = !isGradient && queries < blockRows ? getGroup() : 1;
  units = batch * queryHeads / headsPerUnit;
  rows = headsPerUnit * queries;
  blocks = llvm::divideCeil(rows, blockRows);
  if (!isGradient && !usesWgmma)
    splitKeys();
}

AttentionTilePlan::AttentionTilePlan(const AttentionShape &shape, const ScoreRules &rules, int64_t headsPerUnit)
    : AttentionShape(shape), blockThreads(threads), usesMma(fitsMma(shape)), usesWgmma(false),
      headsPerUnit(headsPerUnit), units(batch * queryHeads / headsPerUnit), rows(headsPerUnit * queries),
      blockRows(usesMma ? 64 : 32), blockKeys(usesMma && features <= 128 ? 64 : 32), rowsOfThread(usesMma ? 2 : 1),
      rules(rules), resultElement(element) {
  cutFeatures();
  blocks = llvm::divideCeil(rows, blockRows);
}

void AttentionTilePlan::cutFeatures() {
  keysOfThread = blockKeys / 4;
  sliceFeatures =
      usesWgmma ? valueFeatures
                : std::min<int64_t>(compute.isF64() ? 64 : 128, llvm::alignTo(valueFeatures, 16));
  slices = llvm::divideCeil(valueFeatures, std::max<int64_t>(sliceFeatures, 1));
}

void AttentionTilePlan::splitKeys() {
  // A multiprocessor has work for two blocks at a time, and a GPU about 128 multiprocessors.
  constexpr int64_t wantedBlocks = 256, leastTiles = 2, mostCounters = MW_RT_COUNTER_BYTES / 4;
  int64_t own = units * slices * blocks;
  if (own > 0 && own <= std::min(wantedBlocks, mostCounters))
    splits = std::clamp<int64_t>(keys / (leastTiles * blockKeys), 1, wantedBlocks / own);
}

AttentionBlock::AttentionBlock(const AttentionLaunch &launch, const AttentionTilePlan &plan)
    : LoopEmitter(plan.element.getContext()), op(launch.op), plan(plan),
      biasRegion(launch.biasRegion) {
  if (op && op.getBias())
    biasStrides = getBiasStrides(op);
  if (!biasRegion)
    return;
  biasElements.emplace(b, *biasRegion);
  biasPoints.emplace(op, /*queriesAreColumns=*/false);
}

unsigned AttentionBlock::bindBuffers(Block &entry) {
  unsigned next = 0;
  for (auto [tensor, buffer] : AttentionBuffers::getInputs(op, biasRegion)) {
    Value argument = entry.getArgument(next++);
    if (buffer)
      *buffer = argument;
    else
      biasElements->setBuffer(tensor, argument);
  }
  for (auto [tensor, buffer] : AttentionBuffers::getOutputs(op))
    *buffer = entry.getArgument(next++);
  return next;
}

void AttentionBlock::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = bindBuffers(entry);
  if (getScratchBytes() > 0)
    scratch = entry.getArgument(next);
  shared = entry.getArguments().back();
  thread = emitThread(b, AttentionTilePlan::threads);
  quad = rem(thread, 4);
  if (op && op.getStream())
    random = {memref::LoadOp::create(b, seed, getIndex(0)),
              memref::LoadOp::create(b, step, getIndex(0)), int64_t(*op.getStream())};
  emitBlock(lower::emitBlock(b, getNumBlocks()));
}

void AttentionBlock::startBatch() {
  numKeys = getIndex(plan.keys);
  if (lengths) {
    Value given = loadElement(lengths, batchIndex, b.getI64Type());
    given = arith::MaxSIOp::create(b, given, emitConstant(b, b.getI64Type(), 0));
    if (plan.hasPositions)
      length = given;
    else
      numKeys = min(arith::IndexCastOp::create(b, b.getIndexType(), given), plan.keys);
  }
}

Value AttentionBlock::getEndOfRows() {
  return plan.rows % plan.blockRows ? getIndex(plan.rows) : Value();
}

Value AttentionBlock::getResultRow(Value row) { return add(mul(unit, plan.rows), row); }

void AttentionBlock::startRows() {
  rows.clear();
  for (int64_t i = 0; i < plan.rowsOfThread; ++i) {
    Row row;
    row.index = add(firstRow, getRowOffset(i));
    if (Value end = getEndOfRows()) {
      row.exists = isBelow(row.index, end);
      row.index = min(row.index, plan.rows - 1);
    }
    row.head = mul(rem(unit, plan.units / plan.batch), plan.headsPerUnit);
    row.query = row.index;
    if (plan.headsPerUnit > 1) {
      row.head = add(row.head, div(row.index, plan.queries));
      row.query = rem(row.index, plan.queries);
    }
    if (plan.hasPositions) {
      Value at =
          plan.hasQueryPositionsOfRow ? add(mul(batchIndex, plan.queries), row.query) : row.query;
      row.position = loadElement(queryPositions, at, b.getI64Type());
    } else {
      row.position = arith::IndexCastOp::create(b, getPositionType(), row.query);
    }
    if (plan.right)
      row.highest = add(row.position, getPosition(*plan.right));
    if (plan.left)
      row.lowest = sub(row.position, getPosition(*plan.left));
    rows.push_back(row);
  }
}

std::pair<Value, Value> AttentionBlock::getKeyRange() {
  Value first = getIndex(0), last = numKeys;
  if (plan.hasPositions)
    return {first, last};
  Value lowest = getIndex(0), highest = getIndex(plan.queries - 1);
  if (plan.isOrdered()) {
    lowest = firstRow;
    highest = min(add(firstRow, plan.blockRows - 1), plan.rows - 1);
  }
  if (plan.right)
    last = min(last, add(highest, *plan.right + 1));
  if (plan.left)
    first = max(first, sub(lowest, getIndex(*plan.left)));
  return {first, last};
}

//===----------------------------------------------------------------------===//
// The mask
//===----------------------------------------------------------------------===//

Value AttentionBlock::getPosition(int64_t position) {
  return arith::ConstantIntOp::create(b, getPositionType(), position);
}

Value AttentionBlock::compare(arith::CmpIPredicate predicate, Value lhs, Value rhs) {
  return arith::CmpIOp::create(b, predicate, lhs, rhs);
}

bool AttentionBlock::hasRest() const {
  bool startsAnywhere = plan.left && !plan.hasPositions;
  return plan.keys % plan.blockKeys != 0 || startsAnywhere || (lengths && !plan.hasPositions);
}

Value AttentionBlock::isKey(Value key, Value &position) {
  Value is;
  if (hasRest()) {
    is = isBelow(key, numKeys);
    key = min(key, std::max<int64_t>(plan.keys - 1, 0));
  }
  if (padding) {
    Value at = add(mul(batchIndex, plan.keyRows), key);
    is = both(is, loadElement(padding, at, b.getI1Type()));
  }
  if (plan.hasPositions) {
    Value at = plan.hasKeyPositionsOfRow ? add(mul(batchIndex, plan.keyRows), key) : key;
    position = loadElement(keyPositions, at, b.getI64Type());
    // Without a sign, negative positions are above each length.
    is = both(is, length ? compare(arith::CmpIPredicate::ult, position, length)
                         : compare(arith::CmpIPredicate::sge, position, getPosition(0)));
  } else {
    position = arith::IndexCastOp::create(b, getPositionType(), key);
  }
  return is;
}

/// The bias of each score.
void AttentionBlock::emitBiases(ArrayRef<Value> keys) {
  Type element = getElementTypeOrSelf(op.getBias().getType());
  for (const Row &row : rows) {
    if (biasElements) {
      biasElements->startRow(biasPoints->space, {batchIndex, row.head, row.query});
      for (Value key : keys) {
        biasElements->startColumns(0, biasPoints->space.end, key, 1, nullptr);
        Value term = biasElements->emitVector(op.getBias(), biasPoints->access);
        term = vector::ExtractOp::create(b, term, int64_t(0));
        biases.push_back(emitCast(b, term, plan.compute));
      }
      continue;
    }
    Value base = add(mul(batchIndex, biasStrides[0]), mul(row.head, biasStrides[1]));
    base = add(base, mul(row.query, biasStrides[2]));
    for (Value key : keys) {
      Value term = loadElement(bias, add(base, mul(key, biasStrides[3])), element);
      biases.push_back(emitCast(b, term, plan.compute));
    }
  }
}

void AttentionBlock::emitMask() {
  seen.clear();
  biases.clear();
  SmallVector<Value> keys, positions, areKeys;
  for (int64_t i = 0; i < plan.keysOfThread; ++i) {
    Value key = add(firstKey, getKeyOffset(i)), position;
    areKeys.push_back(isKey(key, position));
    keys.push_back(hasRest() ? min(key, std::max<int64_t>(plan.keys - 1, 0)) : key);
    positions.push_back(position);
  }
  if (op.getBias())
    emitBiases(keys);
  Value lowest = getScalar(-std::numeric_limits<double>::infinity());
  for (const Row &row : rows)
    for (auto [position, isKey] : llvm::zip_equal(positions, areKeys)) {
      Value is = isKey;
      if (row.highest)
        is = both(is, compare(arith::CmpIPredicate::sle, position, row.highest));
      if (row.lowest)
        is = both(is, compare(arith::CmpIPredicate::sge, position, row.lowest));
      if (op.getBias())
        is = both(is,
                  arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, biases[seen.size()], lowest));
      seen.push_back(is);
    }
}

Value AttentionBlock::emitCapped(Value product) {
  Value score = arith::MulFOp::create(b, product, getScalar(plan.rules.factor));
  return plan.rules.cap ? emitSoftCap(b, *plan.rules.cap, plan.rules.unit, score) : score;
}

Value AttentionBlock::exponentiate(Value score, Value maximum) {
  Value power = arith::SubFOp::create(b, score, maximum);
  if (plan.rules.unit != M_LOG2E)
    power = arith::MulFOp::create(b, power, getScalar(M_LOG2E));
  return emitPower(power);
}

Value AttentionBlock::emitPower(Value exponent) {
  if (plan.compute.isF64())
    return emitExp2(b, exponent);
  return math::Exp2Op::create(b, exponent, arith::FastMathFlags::afn);
}

//===----------------------------------------------------------------------===//
// Dropout
//===----------------------------------------------------------------------===//

/// The loop after which this value stands is not unrolled, neither by LLVM nor by ptxas.
static void keepRolled(Value result) {
  MLIRContext *context = result.getContext();
  auto unroll =
      LLVM::LoopUnrollAttr::get(context, BoolAttr::get(context, true), {}, {}, {}, {}, {}, {});
  result.getDefiningOp()->setAttr(
      "loop_annotation", LLVM::LoopAnnotationAttr::get(context, {}, {}, {}, unroll, {}, {}, {}, {},
                                                       {}, {}, {}, {}, {}, {}, {}));
}

/// A loop computes the numbers, two keys at a time, from keys of the generator that are computed for
/// this tile only. Afterwards a bit for each score is all that needs a register.
void AttentionBlock::emitDropout() {
  if (!dropRows)
    return;
  Type word = b.getI32Type();
  RandomStream here = {emitOpaque(b, random.seed), emitOpaque(b, random.step), random.stream};
  SmallVector<Value> ofRows;
  for (const Row &row : rows)
    ofRows.push_back(memref::LoadOp::create(b, dropRows, add(mul(unit, plan.rows), row.index)));
  auto emitKeys = [&](Value first, ValueRange known) {
    SmallVector<Value> words(known);
    for (int64_t i : {0, 1}) {
      Value key = add(firstKey, add(mul(first, 4), getKeyOffset(i)));
      if (hasRest())
        key = min(key, std::max<int64_t>(plan.keys - 1, 0));
      Value ofKey = memref::LoadOp::create(b, dropKeys, key);
      Value place = arith::IndexCastOp::create(b, word, add(first, i));
      for (auto [bits, ofRow] : llvm::zip_equal(words, ofRows)) {
        Value is = emitIsKept(b, arith::AddIOp::create(b, ofRow, ofKey), here,
                              op.getDropout()->convertToDouble());
        Value bit = arith::ShLIOp::create(b, arith::ExtUIOp::create(b, word, is), place);
        bits = arith::OrIOp::create(b, bits, bit);
      }
    }
    return words;
  };
  SmallVector<Value> none(rows.size(), emitConstant(b, word, 0));
  kept = loop(getIndex(0), getIndex(plan.keysOfThread), 2, none, emitKeys);
  keepRolled(kept.front());
}

Value AttentionBlock::drop(Value number, size_t i) {
  if (!dropRows)
    return number;
  Value word = kept[i / plan.keysOfThread];
  Value place = emitConstant(b, word.getType(), double(uint32_t(1) << i % plan.keysOfThread));
  Value isDropped = compare(arith::CmpIPredicate::eq, arith::AndIOp::create(b, word, place),
                            emitConstant(b, word.getType(), 0));
  return arith::SelectOp::create(b, isDropped, getScalar(0), number);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

Value AttentionBlock::getShared(int64_t offset, int64_t count, Type type) {
  return emitShared(b, shared, offset, count, type);
}

Value AttentionBlock::loadElement(Value buffer, Value index, Type element) {
  return fromRowStorage(b, memref::LoadOp::create(b, buffer, index), element);
}

int64_t AttentionBlock::getWidth(Type element, int64_t columns) {
  return std::gcd<int64_t>(columns, 128 / element.getIntOrFloatBitWidth());
}

void AttentionBlock::forEachChunk(int64_t numRows, int64_t columns, int64_t width, int64_t bytes,
                                  int64_t line, function_ref<void(Value, Value)> body) {
  constexpr int64_t threads = AttentionTilePlan::threads, banks = 128, sector = 32, together = 8;
  int64_t chunks = columns / width, count = numRows * chunks;
  // Eight neighbouring threads fill all banks by a part of one row, or by a chunk of each of eight
  // rows. The latter costs sectors of global memory unless lines begin at sectors.
  bool isAcross = columns * bytes % banks != 0 && width * bytes * together == banks &&
                  line % sector == 0 && numRows % together == 0;
  loop(getIndex(0), getIndex(llvm::divideCeil(count, threads)), 1, [&](Value turn) {
    Value number = add(mul(turn, threads), thread);
    auto emit = [&] {
      if (!isAcross)
        return body(div(number, chunks), mul(rem(number, chunks), width));
      Value row = add(mul(div(number, together * chunks), together), rem(number, together));
      body(row, mul(rem(div(number, together), chunks), width));
    };
    if (count % threads == 0)
      return emit();
    when(isBelow(number, getIndex(count)), emit);
  });
}

void AttentionBlock::copyTile(const Tile &tile, Value to, int64_t stride, Type element) {
  Type stored = cast<MemRefType>(tile.buffer.getType()).getElementType();
  // In shared memory elements may be wider.
  int64_t width = getWidth(element, tile.columns);
  auto vector = VectorType::get(width, stored);
  int64_t bytes = element.getIntOrFloatBitWidth() / 8;
  int64_t line = tile.columns * stored.getIntOrFloatBitWidth() / 8;
  forEachChunk(tile.rows, tile.tileColumns, width, bytes, line, [&](Value row, Value column) {
    Value fromRow = add(tile.firstRow, row), fromColumn = add(tile.firstColumn, column), exists;
    if (tile.endRow)
      exists = isBelow(fromRow, tile.endRow);
    if (tile.columns % tile.tileColumns)
      exists = both(exists, isBelow(fromColumn, getIndex(tile.columns)));
    auto load = [&] {
      Value at = tile.place ? add(mul(tile.place(fromRow), tile.columns), fromColumn)
                            : add(tile.base, add(mul(fromRow, tile.columns), fromColumn));
      return SmallVector<Value>{vector::LoadOp::create(b, vector, tile.buffer, at)};
    };
    Value chunk = exists ? choose(exists, load,
                                  [&] { return SmallVector<Value>{emitConstant(b, vector, 0)}; })
                               .front()
                         : load().front();
    if (element != stored)
      chunk = emitCast(b, fromRowStorage(b, chunk, plan.element), element);
    vector::StoreOp::create(b, chunk, to, add(mul(row, stride), column));
  });
}

AttentionBlock::Tile AttentionBlock::getQueryTile() {
  return {query,         mul(unit, plan.rows * plan.features),
          firstRow,      getEndOfRows(),
          getIndex(0),   plan.blockRows,
          plan.features, plan.features};
}

AttentionBlock::Tile AttentionBlock::getKeyTile() {
  return {key,           mul(keyUnit, plan.keyRows * plan.features),
          firstKey,      hasRest() ? numKeys : Value(),
          getIndex(0),   plan.blockKeys,
          plan.features, plan.features};
}

AttentionBlock::Tile AttentionBlock::getValueTile() {
  return {value,
          mul(keyUnit, plan.keyRows * plan.valueFeatures),
          firstKey,
          hasRest() ? numKeys : Value(),
          firstFeature,
          plan.blockKeys,
          plan.sliceFeatures,
          plan.valueFeatures};
}

} // namespace meshwright::lower

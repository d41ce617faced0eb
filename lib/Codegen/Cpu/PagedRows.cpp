//===- PagedRows.cpp - paged attention of one token -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Features are lanes. A unit reads keys and values once, row by row, for all of its heads. The token
// sees all keys of the unit, so no score is masked.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/PagedEmitter.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>
#include <limits>
#include <numeric>

using namespace mlir;

namespace meshwright::lower {

void PagedEmitter::reserveRows() {
  int64_t rows = plan.blockHeads;
  rowTile = rows <= 2 ? rows : 4;
  keyTile = lanes / rowTile;
  step = plan.usesDot ? 2 * lanes : lanes;
  paddedRows = llvm::alignTo(rows, rowTile);
  queryStride = llvm::alignTo(plan.features, step);
  scoreStride = kRowKeys + lanes;
  resultStride = llvm::alignTo(plan.valueFeatures, lanes);
  int64_t rowsOfUnit = plan.unitBlocks * paddedRows, padded = llvm::alignTo(rowsOfUnit, lanes);
  reserve(rowQueries, rowsOfUnit * queryStride, plan.usesDot ? element : compute);
  reserve(rowScores, rowsOfUnit * scoreStride, compute);
  reserve(rowResults, rowsOfUnit * resultStride, compute);
  reserve(rowMaxima, padded, compute);
  reserve(rowSums, padded, compute);
  reserve(rowScales, padded, compute);
}

void PagedEmitter::packRowQueries() {
  int64_t whole = plan.features / step * step, rest = plan.features - whole;
  loop(getIndex(0), getIndex(paddedRows), 1, [&](Value row) {
    // Rows behind the last one repeat it.
    Value base = mul(add(queryBase, min(row, plan.blockHeads - 1)), plan.features);
    auto copy = [&](Value column, int64_t size) {
      Value elements = load(query, add(base, column), size);
      elements = resize(plan.usesDot ? elements : widen(elements), step);
      store(elements, rowQueries.buffer, atRow(ofUnit(row), queryStride, column));
    };
    loop(getIndex(0), getIndex(whole), step, [&](Value column) { copy(column, step); });
    if (rest)
      copy(getIndex(whole), rest);
  });
}

void PagedEmitter::prefetch(Value buffer, Value index) {
  memref::PrefetchOp::create(b, buffer, index, /*isWrite=*/false, /*localityHint=*/2, /*isDataCache=*/true);
}

Value PagedEmitter::getRowAhead(Value key, Value first, Value last) {
  Value count = add(arith::MulIOp::create(b, headBlock, numKeys), key);
  Value row = min(add(first, div(count, plan.unitBlocks)), last);
  return add(loadNumber(offsets.buffer, row), rem(count, plan.unitBlocks));
}

void PagedEmitter::emitScoreTile(Value firstRow, Value first) {
  constexpr int64_t kAhead = 16;
  SmallVector<Value> keyRows, rowsAhead, valueRows;
  for (int64_t j = 0; j < keyTile; ++j)
    keyRows.push_back(getKeyRow(add(first, j)));
  for (int64_t j = 0; j < keyTile; ++j)
    rowsAhead.push_back(getKeyRow(add(first, j + kAhead)));
  for (int64_t j = 0; j < keyTile && !plan.sharesPages; ++j)
    valueRows.push_back(mul(getRowAhead(add(first, j), getIndex(0), sub(numKeys, getIndex(1))), plan.valueStride));
  auto emitStep = [&](Value column, int64_t size, ValueRange before) {
    SmallVector<Value> rows, products;
    for (int64_t i = 0; i < rowTile; ++i)
      rows.push_back(load(rowQueries.buffer, atRow(ofUnit(add(firstRow, i)), queryStride, column), step));
    for (int64_t j = 0; j < keyTile; ++j) {
      prefetch(keys, add(rowsAhead[j], column));
      if (!plan.sharesPages)
        prefetch(values, add(valueRows[j], column));
      Value elements = load(keys, add(keyRows[j], column), size);
      elements = resize(plan.usesDot ? elements : widen(elements), step);
      for (int64_t i = 0; i < rowTile; ++i) {
        Value sum = before[j * rowTile + i];
        products.push_back(plan.usesDot ? dot(rows[i], elements, sum) : fma(rows[i], elements, sum));
      }
    }
    return products;
  };
  SmallVector<Value> products(rowTile * keyTile, getSplat(0));
  int64_t whole = plan.features / step * step, rest = plan.features - whole;
  if (whole)
    products = loop(getIndex(0), getIndex(whole), step, products,
                    [&](Value column, ValueRange known) { return emitStep(column, step, known); });
  if (rest)
    products = emitStep(getIndex(whole), rest, products);

  // Lane i * keyTile + j: row i, key j.
  SmallVector<Value> ordered;
  for (int64_t lane = 0; lane < lanes; ++lane)
    ordered.push_back(products[lane % keyTile * rowTile + lane / keyTile]);
  Value tile = arith::MulFOp::create(b, sumEach(ordered), getSplat(getFactor()));
  for (int64_t i = 0; i < rowTile; ++i) {
    SmallVector<int64_t> row(keyTile);
    std::iota(row.begin(), row.end(), i * keyTile);
    store(rowTile == 1 ? tile : shuffle(tile, tile, row), rowScores.buffer,
          atRow(ofUnit(add(firstRow, i)), scoreStride, first));
  }
}

Value PagedEmitter::getPositions(Value key) {
  auto type = getVector(lanes, b.getI32Type());
  SmallVector<int32_t> steps(lanes);
  std::iota(steps.begin(), steps.end(), 0);
  auto splatI32 = [&](Value index) { return splat(arith::IndexCastOp::create(b, b.getI32Type(), index)); };
  auto constant = [&](int64_t value) -> Value { return emitConstant(b, type, value); };
  Value position = arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef<int32_t>(steps)));
  position = arith::AddIOp::create(b, position, splatI32(key));
  if (plan.deal > 1) {
    Value size = constant(plan.pageSize);
    Value block = arith::MulIOp::create(b, arith::DivUIOp::create(b, position, size), constant(plan.deal));
    block = arith::AddIOp::create(b, block, splatI32(residue));
    position = arith::AddIOp::create(b, arith::MulIOp::create(b, block, size),
                                     arith::RemUIOp::create(b, position, size));
  }
  return position;
}

Value PagedEmitter::getDistances(Value positions) {
  Value own = arith::IndexCastOp::create(b, b.getI32Type(), sub(getSeen(firstToken), getIndex(1)));
  return arith::SubIOp::create(b, positions, splat(own));
}

void PagedEmitter::emitRowProbabilities(Value row) {
  Value own = ofUnit(row), start = mul(own, scoreStride), slope = slopes ? splat(loadPerHead(slopes, row)) : Value();
  auto type = getVector(lanes, b.getI32Type());
  Value origin = distances ? splat(getBiasOrigin(row)) : Value();
  SmallVector<int32_t> lane(lanes);
  std::iota(lane.begin(), lane.end(), 0);
  Value order = arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef<int32_t>(lane)));
  auto visit = [&](Value i, Value largest, bool isLast) {
    Value score = cap(load(rowScores.buffer, add(start, i)));
    Value positions = slope || origin ? getPositions(add(firstKey, i)) : Value();
    if (slope)
      score = fma(slope, arith::SIToFPOp::create(b, getVector(), getDistances(positions)), score);
    if (origin) {
      Value steps = plan.biasByPosition ? positions : getDistances(positions);
      score = arith::AddFOp::create(b, score, loadBias(origin, steps));
    }
    if (isLast) {
      // Lanes behind the last key.
      Value count = splat(arith::IndexCastOp::create(b, b.getI32Type(), sub(numKeys, i)));
      Value isKey = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, order, count);
      score = arith::SelectOp::create(b, isKey, score, getLowest());
    }
    store(score, rowScores.buffer, add(start, i));
    return larger(largest, score);
  };
  Value whole = mul(div(numKeys, lanes), lanes);
  Value found = loop(getIndex(0), whole, lanes, ValueRange{getLowest()}, [&](Value i, ValueRange known) {
                  return SmallVector<Value>{visit(i, known[0], false)};
                }).front();
  found = loop(whole, numKeys, lanes, ValueRange{found}, [&](Value i, ValueRange known) {
            return SmallVector<Value>{visit(i, known[0], true)};
          }).front();
  Value before = loadScalar(rowMaxima.buffer, own);
  Value maximum = vector::ReductionOp::create(b, vector::CombiningKind::MAXIMUMF, found, before);
  memref::StoreOp::create(b, maximum, rowMaxima.buffer, own);
  Value guarded = guard(splat(maximum));
  Value scale = vector::ExtractOp::create(b, exponentiate(splat(before), guarded), 0);
  memref::StoreOp::create(b, scale, rowScales.buffer, own);
  Value added = loop(getIndex(0), numKeys, lanes, ValueRange{getSplat(0)}, [&](Value i, ValueRange known) {
                  Value index = add(start, i);
                  Value share = exponentiate(load(rowScores.buffer, index), guarded);
                  store(share, rowScores.buffer, index);
                  return SmallVector<Value>{arith::AddFOp::create(b, known[0], share).getResult()};
                }).front();
  Value sum =
      vector::ReductionOp::create(b, vector::CombiningKind::ADD, added, arith::FastMathFlags::reassoc);
  memref::StoreOp::create(b, fma(loadScalar(rowSums.buffer, own), scale, sum), rowSums.buffer, own);
}

void PagedEmitter::emitProductTile(Value firstRow, Value column, int64_t full, int64_t tail) {
  int64_t numVectors = full + (tail ? 1 : 0);
  int64_t line = 64 / (element.getIntOrFloatBitWidth() / 8);
  // The rows of keys that are read next: of the next block, or, where the unit has one block, of the next unit's heads.
  Value isOnly = arith::AndIOp::create(b, isEqual(firstKey, firstOfUnit), isEqual(numKnown, numKeys));
  auto choose = [&](int64_t only, int64_t other) -> Value {
    return arith::SelectOp::create(b, isOnly, getIndex(only), getIndex(other));
  };
  Value toNext = choose(0, kRowKeys), toNextHeads = choose(plan.unitBlocks * plan.features, 0);
  // Each block is summed separately and then added, which keeps long sums exact.
  SmallVector<Value> init(rowTile * numVectors, getSplat(0));
  SmallVector<Value> added = loop(getIndex(0), numKeys, 1, init, [&](Value k, ValueRange known) {
    SmallVector<Value> vectors, sums;
    Value start = add(getValueRow(k), column);
    Value next = getRowAhead(k, toNext, sub(numKnown, getIndex(1)));
    Value ahead = add(add(mul(next, plan.features), toNextHeads), column);
    for (int64_t v = 0; v < numVectors; ++v) {
      if (v * lanes % line == 0)
        prefetch(keys, add(ahead, v * lanes));
      Value elements = load(values, add(start, v * lanes), v < full ? lanes : tail);
      vectors.push_back(resize(widen(elements), lanes));
    }
    for (int64_t i = 0; i < rowTile; ++i) {
      Value share = splat(loadScalar(rowScores.buffer, atRow(ofUnit(add(firstRow, i)), scoreStride, k)));
      for (int64_t v = 0; v < numVectors; ++v)
        sums.push_back(fma(share, vectors[v], known[i * numVectors + v]));
    }
    return sums;
  });
  for (int64_t i = 0; i < rowTile; ++i) {
    Value scale = splat(loadScalar(rowScales.buffer, ofUnit(add(firstRow, i))));
    for (int64_t v = 0; v < numVectors; ++v) {
      Value place = atRow(ofUnit(add(firstRow, i)), resultStride, add(column, v * lanes));
      store(fma(load(rowResults.buffer, place), scale, added[i * numVectors + v]), rowResults.buffer, place);
    }
  }
}

void PagedEmitter::emitRowProducts() {
  int64_t sums = processor.numVectorRegisters >= 32 ? 16 : 8;
  int64_t tile = std::min<int64_t>(8, sums / rowTile), columns = tile * lanes;
  int64_t whole = plan.valueFeatures / columns * columns, rest = plan.valueFeatures - whole;
  loop(getIndex(0), getIndex(paddedRows), rowTile, [&](Value row) {
    if (whole)
      loop(getIndex(0), getIndex(whole), columns, [&](Value column) { emitProductTile(row, column, tile, 0); });
    if (rest)
      emitProductTile(row, getIndex(whole), rest / lanes, rest % lanes);
  });
}

void PagedEmitter::emitRowResult() {
  int64_t whole = plan.valueFeatures / lanes * lanes, rest = plan.valueFeatures - whole;
  loop(getIndex(0), getIndex(plan.blockHeads), 1, [&](Value row) {
    Value own = ofUnit(row), sum = splat(loadScalar(rowSums.buffer, own));
    Value maximum = splat(loadScalar(rowMaxima.buffer, own));
    Value factor = getResultFactor(sum, maximum, sinks ? splat(loadPerHead(sinks, row)) : Value());
    Value base = mul(add(resultBase, row), plan.valueFeatures);
    Type type = cast<MemRefType>(result.getType()).getElementType();
    auto emitChunk = [&](Value column, int64_t size) {
      Value scaled =
          arith::MulFOp::create(b, load(rowResults.buffer, atRow(own, resultStride, column)), factor);
      store(emitCast(b, resize(scaled, size), type), result, add(base, column));
    };
    loop(getIndex(0), getIndex(whole), lanes, [&](Value column) { emitChunk(column, lanes); });
    if (rest)
      emitChunk(getIndex(whole), rest);
    if (lse)
      memref::StoreOp::create(b, vector::ExtractOp::create(b, getLogSumExp(sum, maximum), 0), lse,
                              add(resultBase, row));
  });
}

void PagedEmitter::emitRowUnit() {
  forEachHeadBlock([&] { packRowQueries(); });
  Value rows = getIndex(plan.unitBlocks * paddedRows);
  fill(rowResults, mul(rows, resultStride), 0);
  fill(rowSums, rows, 0);
  fill(rowMaxima, rows, -std::numeric_limits<double>::infinity());
  loop(firstOfUnit, lastOfUnit, kRowKeys, [&](Value key) {
    firstKey = key;
    numKnown = min(sub(lastOfUnit, key), 2 * kRowKeys);
    numKeys = min(numKnown, kRowKeys);
    lookUpKeys(numKnown);
    forEachHeadBlock([&] {
      loop(getIndex(0), numKeys, keyTile, [&](Value first) {
        loop(getIndex(0), getIndex(paddedRows), rowTile, [&](Value row) { emitScoreTile(row, first); });
      });
      loop(getIndex(0), getIndex(paddedRows), 1, [&](Value row) { emitRowProbabilities(row); });
    });
    forEachHeadBlock([&] { emitRowProducts(); });
  });
  forEachHeadBlock([&] { emitRowResult(); });
}

} // namespace meshwright::lower

//===- AttentionRows.cpp - attention of few queries -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention with features as lanes, for fewer queries than a vector has lanes. In a step of
// decoding, each head that shares the keys has one query. An item is all queries of a key head.
// It reads keys and values once, row by row.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {
class AttentionRows final : public AttentionEmitter {
public:
  explicit AttentionRows(const AttentionKernel &kernel);

private:
  void emitItem(Value item) override;

  void packQueries();
  void emitScores();
  void emitScoreTile(Value firstRow, Value firstKey);
  void emitProbabilities(Value row);
  /// Copies or computes the bias or the padding of the block of keys, so that whole vectors of
  /// it can be read.
  void copyBias(Value row);
  void copyPadding();
  void copyPositions();
  void copyDropKeys();
  /// Weights of a row, zero where they are dropped.
  Value drop(Value row, Value key, Value weights);
  void emitProducts();
  /// Emits columns from `column` on: `full` whole vectors and, if `tail` is not 0, a vector of
  /// `tail` lanes.
  void emitProductTile(Value firstRow, Value column, int64_t full, int64_t tail);
  void emitResult();
  Value at(Value row, int64_t stride, Value column) { return add(mul(row, stride), column); }

  /// Sums that are kept in registers.
  int64_t numSums;
  /// A tile of scores: rows by keys.
  int64_t rowTile, keyTile;
  /// Rows and their lengths in the workspace.
  int64_t paddedRows, queryStride, scoreStride, resultStride;
  /// Elements of the query in a step of a product.
  int64_t step;

  Region queries, scores, results, maxima, sums, scales, biasRow, keepRow, positionRow, dropRow;
  /// For a computed bias: keys are columns.
  std::optional<BiasPoints> points;

  // The present item.
  Value unit, keyBase, valueBase;
  // The present block of keys.
  Value firstKey, numKeys;
};
} // namespace

AttentionRows::AttentionRows(const AttentionKernel &kernel) : AttentionEmitter(kernel) {
  numSums = processor.numVectorRegisters >= 32 ? 16 : 8;
  rowTile = plan.rows <= 2 ? plan.rows : 4;
  keyTile = plan.lanes / rowTile;
  step = plan.usesDot ? 2 * plan.lanes : plan.lanes;
  paddedRows = llvm::alignTo(plan.rows, rowTile);
  queryStride = llvm::alignTo(plan.features, step);
  scoreStride = plan.blockKeys + plan.lanes;
  resultStride = llvm::alignTo(plan.valueFeatures, plan.lanes);

  Type compute = plan.compute;
  reserve(queries, paddedRows * queryStride, plan.usesDot ? plan.element : compute);
  reserve(scores, paddedRows * scoreStride, compute);
  reserve(results, paddedRows * resultStride, compute);
  reserve(maxima, paddedRows, compute);
  reserve(sums, paddedRows, compute);
  reserve(scales, paddedRows, compute);
  if (op.getBias())
    reserve(biasRow, scoreStride, compute);
  if (biasElements)
    points.emplace(op, /*queriesAreColumns=*/false);
  if (op.getKeyPadding())
    reserve(keepRow, scoreStride, compute);
  if (plan.hasPositions)
    reserve(positionRow, scoreStride, getPositionType());
  if (op.getDropRows())
    reserve(dropRow, scoreStride, b.getI64Type());
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

void AttentionRows::packQueries() {
  Type type = queries.type;
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(getVector(step, type)));
  loop(getIndex(0), getIndex(paddedRows * queryStride), step,
       [&](Value i) { store(zeros, queries.buffer, i); });
  Value base = mul(unit, plan.rows * plan.features);
  loop(getIndex(0), getIndex(plan.rows), 1, [&](Value row) {
    loop(getIndex(0), getIndex(plan.features), 1, [&](Value column) {
      Value element = loadScalar(query, add(base, at(row, plan.features, column)));
      memref::StoreOp::create(b, plan.usesDot ? element : widen(element), queries.buffer,
                              at(row, queryStride, column));
    });
  });
}

void AttentionRows::emitScoreTile(Value firstRow, Value first) {
  SmallVector<Value> keyRows;
  for (int64_t j = 0; j < keyTile; ++j) {
    // Keys behind the last key repeat it. No op reads their scores.
    Value row = add(add(firstKey, first), j);
    if (plan.keys % keyTile)
      row = min(row, plan.keys - 1);
    keyRows.push_back(add(keyBase, mul(row, plan.features)));
  }
  auto emitStep = [&](Value column, int64_t size, ValueRange before) {
    SmallVector<Value> rows, products;
    for (int64_t i = 0; i < rowTile; ++i)
      rows.push_back(load(queries.buffer, at(add(firstRow, i), queryStride, column), step));
    for (int64_t j = 0; j < keyTile; ++j) {
      Value elements = load(key, add(keyRows[j], column), size);
      if (!plan.usesDot)
        elements = widen(elements);
      elements = resize(elements, step);
      for (int64_t i = 0; i < rowTile; ++i) {
        Value sum = before[j * rowTile + i];
        products.push_back(plan.usesDot ? dot(rows[i], elements, sum)
                                        : fma(rows[i], elements, sum));
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
  for (int64_t lane = 0; lane < plan.lanes; ++lane)
    ordered.push_back(products[lane % keyTile * rowTile + lane / keyTile]);
  Value tile = arith::MulFOp::create(b, sumEach(ordered), getSplat(getFactor()));
  for (int64_t i = 0; i < rowTile; ++i) {
    SmallVector<int64_t> lanes;
    for (int64_t j = 0; j < keyTile; ++j)
      lanes.push_back(i * keyTile + j);
    store(rowTile == 1 ? tile : shuffle(tile, tile, lanes), scores.buffer,
          at(add(firstRow, i), scoreStride, first));
  }
}

void AttentionRows::emitScores() {
  loop(getIndex(0), numKeys, keyTile, [&](Value first) {
    loop(getIndex(0), getIndex(paddedRows), rowTile, [&](Value row) { emitScoreTile(row, first); });
  });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

void AttentionRows::copyBias(Value row) {
  // Query heads of the unit are stored consecutively.
  Value head = rem(unit, plan.keyHeads);
  head = add(mul(head, plan.headsPerUnit), div(row, plan.queries));
  if (biasElements) {
    auto computeKeys = [&](Value from, Value to, int64_t width) {
      loop(from, to, width, [&](Value i) {
        biasElements->startRow(points->space, {batchIndex, head, rem(row, plan.queries)});
        biasElements->startColumns(0, points->space.end, add(firstKey, i), width, nullptr);
        Value term = biasElements->emitVector(op.getBias(), points->access);
        store(widen(term), biasRow.buffer, i);
      });
    };
    Value whole = mul(div(numKeys, plan.lanes), plan.lanes);
    computeKeys(getIndex(0), whole, plan.lanes);
    return computeKeys(whole, numKeys, 1);
  }
  Value base = add(mul(batchIndex, biasStrides[0]), mul(head, biasStrides[1]));
  base = add(base, mul(rem(row, plan.queries), biasStrides[2]));
  loop(getIndex(0), numKeys, 1, [&](Value i) {
    Value term = loadScalar(bias, add(base, mul(add(firstKey, i), biasStrides[3])));
    memref::StoreOp::create(b, widen(term), biasRow.buffer, i);
  });
}

void AttentionRows::copyPadding() {
  Value base = add(mul(batchIndex, plan.keyRows), firstKey);
  loop(getIndex(0), numKeys, 1, [&](Value i) {
    Value keep = fromStorage(b, loadScalar(padding, add(base, i)), b.getI1Type());
    memref::StoreOp::create(b, arith::SelectOp::create(b, keep, getScalar(1), getScalar(0)),
                            keepRow.buffer, i);
  });
}

void AttentionRows::copyPositions() {
  loop(getIndex(0), numKeys, 1, [&](Value i) {
    memref::StoreOp::create(b, getKeyPosition(add(firstKey, i)), positionRow.buffer, i);
  });
}

void AttentionRows::copyDropKeys() {
  loop(getIndex(0), numKeys, 1, [&](Value i) {
    memref::StoreOp::create(b, loadScalar(dropKeys, add(firstKey, i)), dropRow.buffer, i);
  });
}

Value AttentionRows::drop(Value row, Value key, Value weights) {
  if (!dropRows)
    return weights;
  Value term = loadScalar(dropRows, add(mul(unit, plan.rows), row));
  Value indices = arith::AddIOp::create(b, splat(term), load(dropRow.buffer, key));
  return arith::SelectOp::create(b, isKept(indices), weights, getSplat(0));
}

void AttentionRows::emitProbabilities(Value row) {
  if (op.getBias())
    copyBias(row);
  Type i32 = b.getI32Type();
  auto toVector = [&](Value index) { return splat(arith::IndexCastOp::create(b, i32, index)); };
  // The keys of the block that the query sees.
  Value from, to = numKeys, lower, upper;
  Value position = rem(row, plan.queries);
  if (plan.hasPositions) {
    position = getQueryPosition(position);
    if (plan.right)
      upper = splat(add(position, getPosition(*plan.right)));
    if (plan.left)
      lower = splat(sub(position, getPosition(*plan.left)));
  }
  if (plan.right && !upper)
    to = min(to, sub(add(position, *plan.right + 1), firstKey));
  if (plan.left && !lower)
    from = toVector(sub(sub(position, getIndex(*plan.left)), firstKey));
  to = toVector(to);
  SmallVector<int32_t> lanes;
  for (int64_t lane = 0; lane < plan.lanes; ++lane)
    lanes.push_back(lane);
  Value order = arith::ConstantOp::create(
      b, DenseElementsAttr::get(getVector(plan.lanes, i32), ArrayRef<int32_t>(lanes)));
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  Value start = mul(row, scoreStride);

  Value found =
      loop(getIndex(0), numKeys, plan.lanes, ValueRange{lowest}, [&](Value i, ValueRange known) {
        Value score = cap(load(scores.buffer, add(start, i)));
        if (op.getBias())
          score = arith::AddFOp::create(b, score, load(biasRow.buffer, i));
        Value index = arith::AddIOp::create(b, order, toVector(i));
        Value seen = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, index, to);
        if (from)
          seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sge, index, from));
        if (plan.hasPositions)
          seen = both(seen, isKey(load(positionRow.buffer, i)));
        if (upper)
          seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sle,
                                                  load(positionRow.buffer, i), upper));
        if (lower)
          seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sge,
                                                  load(positionRow.buffer, i), lower));
        if (padding)
          seen = both(seen, arith::CmpFOp::create(b, arith::CmpFPredicate::UNE,
                                                  load(keepRow.buffer, i), getSplat(0)));
        score = arith::SelectOp::create(b, seen, score, lowest);
        store(score, scores.buffer, add(start, i));
        return SmallVector<Value>{larger(known[0], score)};
      }).front();
  Value before = loadScalar(maxima.buffer, row);
  Value maximum = vector::ReductionOp::create(b, vector::CombiningKind::MAXIMUMF, found, before);
  memref::StoreOp::create(b, maximum, maxima.buffer, row);
  Value guarded = guard(splat(maximum));
  Value scale = vector::ExtractOp::create(b, exponentiate(splat(before), guarded), 0);
  memref::StoreOp::create(b, scale, scales.buffer, row);

  Value added =
      loop(getIndex(0), numKeys, plan.lanes, ValueRange{getSplat(0)},
           [&](Value i, ValueRange known) {
             Value index = add(start, i);
             Value share = exponentiate(load(scores.buffer, index), guarded);
             store(drop(row, i, share), scores.buffer, index);
             return SmallVector<Value>{arith::AddFOp::create(b, known[0], share).getResult()};
           })
          .front();
  Value sum = vector::ReductionOp::create(b, vector::CombiningKind::ADD, added,
                                          arith::FastMathFlags::reassoc);
  sum = fma(loadScalar(sums.buffer, row), scale, sum);
  memref::StoreOp::create(b, sum, sums.buffer, row);
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

void AttentionRows::emitProductTile(Value firstRow, Value column, int64_t full, int64_t tail) {
  int64_t numVectors = full + (tail ? 1 : 0);
  auto atResult = [&](int64_t i, int64_t v) {
    return at(add(firstRow, i), resultStride, add(column, v * plan.lanes));
  };
  // Each block is summed separately and then added, which keeps long sums exact.
  SmallVector<Value> init(rowTile * numVectors, getSplat(0));
  Value base = add(add(valueBase, mul(firstKey, plan.valueFeatures)), column);
  SmallVector<Value> added = loop(getIndex(0), numKeys, 1, init, [&](Value k, ValueRange known) {
    SmallVector<Value> values, result;
    Value start = add(base, mul(k, plan.valueFeatures));
    for (int64_t v = 0; v < numVectors; ++v)
      values.push_back(
          resize(widen(load(value, add(start, v * plan.lanes), v < full ? plan.lanes : tail)),
                 plan.lanes));
    for (int64_t i = 0; i < rowTile; ++i) {
      Value share = splat(loadScalar(scores.buffer, at(add(firstRow, i), scoreStride, k)));
      for (int64_t v = 0; v < numVectors; ++v)
        result.push_back(fma(share, values[v], known[i * numVectors + v]));
    }
    return result;
  });
  for (int64_t i = 0; i < rowTile; ++i) {
    Value scale = splat(loadScalar(scales.buffer, add(firstRow, i)));
    for (int64_t v = 0; v < numVectors; ++v)
      store(fma(load(results.buffer, atResult(i, v)), scale, added[i * numVectors + v]),
            results.buffer, atResult(i, v));
  }
}

void AttentionRows::emitProducts() {
  int64_t tile = std::min<int64_t>(8, numSums / rowTile), columns = tile * plan.lanes;
  int64_t whole = plan.valueFeatures / columns * columns;
  int64_t rest = plan.valueFeatures - whole;
  loop(getIndex(0), getIndex(paddedRows), rowTile, [&](Value row) {
    if (whole)
      loop(getIndex(0), getIndex(whole), columns,
           [&](Value column) { emitProductTile(row, column, tile, 0); });
    if (rest)
      emitProductTile(row, getIndex(whole), rest / plan.lanes, rest % plan.lanes);
  });
}

void AttentionRows::emitResult() {
  int64_t whole = plan.valueFeatures / plan.lanes * plan.lanes, rest = plan.valueFeatures - whole;
  Value base = mul(unit, plan.rows * plan.valueFeatures);
  loop(getIndex(0), getIndex(plan.rows), 1, [&](Value row) {
    Value sum = splat(loadScalar(sums.buffer, row));
    Value factor = invert(sum);
    if (dropRows)
      factor = arith::MulFOp::create(b, factor, getSplat(getKeptFactor(op)));
    auto emitChunk = [&](Value column, int64_t size) {
      Value scaled =
          arith::MulFOp::create(b, load(results.buffer, at(row, resultStride, column)), factor);
      store(narrow(resize(scaled, size)), result, add(base, at(row, plan.valueFeatures, column)));
    };
    loop(getIndex(0), getIndex(whole), plan.lanes,
         [&](Value column) { emitChunk(column, plan.lanes); });
    if (rest)
      emitChunk(getIndex(whole), rest);
    if (!lse)
      return;
    Value logarithm;
    if (hasWideLogSumExp(op)) {
      logarithm = emitWideLogSumExp(b, op, loadScalar(sums.buffer, row), loadScalar(maxima.buffer, row));
    } else {
      Value maximum = splat(loadScalar(maxima.buffer, row));
      logarithm = vector::ExtractOp::create(b, getLogSumExp(sum, maximum), 0);
    }
    memref::StoreOp::create(b, logarithm, lse, add(mul(unit, plan.rows), row));
  });
}

void AttentionRows::emitItem(Value item) {
  unit = item;
  startBatch(div(unit, plan.keyHeads));
  keyBase = mul(unit, plan.keyRows * plan.features);
  valueBase = mul(unit, plan.keyRows * plan.valueFeatures);
  packQueries();
  auto fill = [&](Region &region, double value) {
    loop(getIndex(0), getIndex(region.count), 1,
         [&](Value i) { memref::StoreOp::create(b, getScalar(value), region.buffer, i); });
  };
  fill(results, 0);
  fill(sums, 0);
  fill(maxima, -std::numeric_limits<double>::infinity());
  Value last = numKeysOfRow;
  if (plan.right && !plan.hasPositions && plan.queries + *plan.right < plan.keys)
    last = min(last, plan.queries + *plan.right);
  auto emitBlock = [&] {
    if (padding)
      copyPadding();
    if (plan.hasPositions)
      copyPositions();
    if (dropRows)
      copyDropKeys();
    emitScores();
    loop(getIndex(0), getIndex(plan.rows), 1, [&](Value row) { emitProbabilities(row); });
    emitProducts();
  };
  Bounds queryBounds;
  if (plan.hasPositions)
    queryBounds = getBoundsOfQueries();
  loop(getIndex(0), last, plan.blockKeys, [&](Value k) {
    firstKey = k;
    numKeys = min(sub(last, k), plan.blockKeys);
    if (!plan.hasPositions)
      return emitBlock();
    when(isSeen(queryBounds, getBoundsOfKeys(firstKey, numKeys)), emitBlock);
  });
  emitResult();
}

std::unique_ptr<AttentionEmitter> makeAttentionRows(const AttentionKernel &kernel) {
  return std::make_unique<AttentionRows>(kernel);
}

} // namespace meshwright::lower

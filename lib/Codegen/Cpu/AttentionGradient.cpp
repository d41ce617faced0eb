//===- AttentionGradient.cpp - the backward pass of attention -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernel of nn.attention_grad. It computes the scores again, block by block, with queries as
// lanes as the forward kernel does (AttentionPanels.h).
//
// An item (`emitItem`) is all rows that add to the same gradients of keys, values and bias: the
// query heads of a key head, or more heads and rows of the batch if the bias broadcasts over
// them. So one thread adds to each element, always in the same order, and the results of two runs
// have the same bits. For each block of rows (`emitRows`) and each block of keys that any of them
// sees (`emitBlock`):
//
// 1. `emitPanel` computes a panel's scores and their cotangents, turns them into weights p and
//    gradients ds, and adds to the gradients of the queries, which stay in the workspace.
//    Where instructions multiply pairs of bf16, p and ds become bf16 here (`storeWeights`).
// 2. `emitKeyGradients` adds ds^T q and p^T do to the gradients of keys and values, which are in
//    memory. Features are lanes.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionPanels.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

namespace {
class AttentionGradient final : public AttentionPanels {
public:
  explicit AttentionGradient(const AttentionKernel &kernel);

  int64_t getItems() const override { return batchItems * headItems; }

private:
  void emitItem(Value item) override;
  /// Emits the gradients that a key head of a row of the batch adds to.
  void emitKeyHead(Value batchRow, Value keyHead);
  /// Emits what the present block of rows adds.
  void emitRows();
  void emitBlock();
  void emitPanel(Value panel);
  void emitGradients(Value panel);
  void addToBias(Value panel, Value count);
  /// Emits the stores of p and of ds for the products.
  void storeWeights(Value row, int64_t vector, Value weight, Value gradient);
  /// Pairs the gradients of consecutive keys.
  void pairGradients();

  /// Gradients of keys or values: sums over the block's rows of a weight, which has a row for each
  /// key, times a row of queries or cotangents.
  struct KeyGradient {
    const Region &weights;
    /// The first element, or pair of elements, of the block's first row.
    Value rows, base;
    int64_t columns;
    Value target, targetBase;
  };
  void emitKeyGradients(const KeyGradient &gradient);
  /// Emits a tile of keys and columns: `count` vectors of `size` lanes.
  void emitKeyTile(const KeyGradient &gradient, int64_t keys, Value firstRow, Value column,
                   int64_t count, int64_t size);

  /// Packs what is subtracted from the scores of each row, its factor, and delta.
  void packRowScalars();
  /// Copies the rows of queries or cotangents, widened or as pairs.
  void copyRows(Value source, int64_t columns, const Region &region);
  void fill(Value buffer, Value first, Value count);

  nn::AttentionGradOp grad;
  int64_t batchItems, headItems, scoreRows, outSteps;

  /// Cotangents of the block's rows as panels; cotangents of scores, then ds; ds before the cap
  /// and the scale, for the bias; gradients of the queries.
  Region outPanels, gradients, biasGradients, queryGradients;
  /// In bf16: p and ds of all panels with a row for each key, ds of a panel as pairs of keys.
  Region weightRows, gradientRows, gradientPairs;
  /// For each row what is subtracted from its scores, the exponent that remains, and delta.
  Region shifts, rests, deltas;
  /// The rows of each panel that see a key of the block.
  Region counts;
  /// Widened rows, or pairs of rows; pairs of keys.
  Region queryRows, outRows, keyPairs;
  /// Where the rows of p and ds of the present panel begin.
  Value rowsBase;
};
} // namespace

AttentionGradient::AttentionGradient(const AttentionKernel &kernel)
    : AttentionPanels(kernel), grad(cast<nn::AttentionGradOp>(op.getOperation())) {
  bool hasBias = bool(grad.getBiasGrad());
  batchItems = hasBias && !biasStrides[0] ? 1 : plan.batch;
  headItems = hasBias && !biasStrides[1] ? 1 : plan.keyHeads;
  scoreRows = plan.blockKeys + tileRows;
  int64_t panels = plan.blockRows / width;

  Type compute = plan.compute, step = plan.usesDot ? getPairs() : compute;
  outSteps = plan.usesDot ? plan.valueFeatures / 2 : plan.valueFeatures;
  // Products of pairs read copies, so only one panel has scores at a time.
  int64_t columns = plan.usesDot ? width : plan.blockRows;
  reserve(queryPanels, featureSteps * plan.blockRows, step);
  reserve(outPanels, outSteps * plan.blockRows, step);
  reserve(scores, scoreRows * columns, compute);
  reserve(gradients, scoreRows * columns, compute);
  if (hasBias)
    reserve(biasGradients, scoreRows * columns, compute);
  if (plan.usesDot) {
    reserve(weightRows, scoreRows * plan.blockRows, plan.element);
    reserve(gradientRows, scoreRows * plan.blockRows, plan.element);
    reserve(gradientPairs, keySteps * width, step);
    reserve(keyPairs, keySteps * plan.features, step);
  }
  reserve(queryGradients, llvm::alignTo(plan.features, tileRows) * plan.blockRows, compute);
  reserve(shifts, plan.blockRows, compute);
  if (hasWideLogSumExp(op))
    reserve(rests, plan.blockRows, compute);
  reserve(deltas, plan.blockRows, compute);
  reserve(counts, panels, b.getI64Type());
  if (isWidened || plan.usesDot) {
    int64_t rows = plan.usesDot ? plan.blockRows / 2 : plan.blockRows;
    reserve(queryRows, rows * plan.features, step);
    reserve(outRows, rows * plan.valueFeatures, step);
  }
  reservePositions();
  reserveKeysAndValues();
  reserveBias();
  reserveDropout();
}

//===----------------------------------------------------------------------===//
// Rows
//===----------------------------------------------------------------------===//

void AttentionGradient::fill(Value buffer, Value first, Value count) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  Value zero = emitConstant(b, type, 0);
  Value whole = mul(div(count, plan.lanes), plan.lanes);
  loop(getIndex(0), whole, plan.lanes,
       [&](Value i) { store(splat(zero), buffer, add(first, i)); });
  loop(whole, count, 1,
       [&](Value i) { memref::StoreOp::create(b, zero, buffer, add(first, i)); });
}

void AttentionGradient::copyRows(Value source, int64_t columns, const Region &region) {
  Value base = mul(add(mul(unit, plan.rows), firstRow), columns), count = mul(numRows, columns);
  if (plan.usesDot)
    return packPairs(source, columns, base, numRows, region);
  Value whole = mul(div(count, plan.lanes), plan.lanes);
  loop(getIndex(0), whole, plan.lanes,
       [&](Value i) { store(widen(load(source, add(base, i))), region.buffer, i); });
  loop(whole, count, 1, [&](Value i) {
    memref::StoreOp::create(b, widen(loadScalar(source, add(base, i))), region.buffer, i);
  });
}

void AttentionGradient::packRowScalars() {
  Value base = mul(unit, plan.rows);
  Value infinity = getScalar(std::numeric_limits<double>::infinity());
  loop(getIndex(0), mul(numPanels, width), 1, [&](Value i) {
    Value row = add(base, min(add(firstRow, i), plan.rows - 1));
    Value sum = loadScalar(lse, row), shift, rest;
    if (hasWideLogSumExp(op))
      std::tie(shift, rest) = emitSplitLogSumExp(b, op, sum);
    else
      shift = arith::MulFOp::create(b, sum, getScalar(getUnit()));
    // A row without keys has weights of zero.
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, shift,
                                          getScalar(-std::numeric_limits<double>::infinity()));
    shift = arith::SelectOp::create(b, isEmpty, infinity, shift);
    memref::StoreOp::create(b, shift, shifts.buffer, i);
    if (rest) {
      rest = arith::SelectOp::create(b, isEmpty, getScalar(0), rest);
      memref::StoreOp::create(b, rest, rests.buffer, i);
    }
    memref::StoreOp::create(b, loadScalar(delta, row), deltas.buffer, i);
  });
}

//===----------------------------------------------------------------------===//
// Gradients of scores
//===----------------------------------------------------------------------===//

/// Turns scores into weights, and their cotangents into gradients.
void AttentionGradient::emitGradients(Value panel) {
  SmallVector<Value> shiftOf, restOf, deltaOf;
  for (int64_t v = 0; v < vectors; ++v) {
    Value place = mul(getGroup(panel, v), plan.lanes);
    shiftOf.push_back(load(shifts.buffer, place));
    restOf.push_back(rests.buffer ? load(rests.buffer, place) : Value());
    deltaOf.push_back(load(deltas.buffer, place));
  }
  double scale = op.getScale().convertToDouble();
  visitMasked(panel, {}, [&](Value row, int64_t v, Value capped, Value score, Value) {
    Value exponent = arith::SubFOp::create(b, score, shiftOf[v]);
    if (getUnit() != M_LOG2E)
      exponent = arith::MulFOp::create(b, exponent, getSplat(M_LOG2E));
    if (restOf[v])
      exponent = arith::SubFOp::create(b, exponent, restOf[v]);
    // No weight is above 1, for any log-sum-exp in padding.
    Value isAbove = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, exponent, getSplat(0));
    exponent = arith::SelectOp::create(b, isAbove, getSplat(0), exponent);
    Value weight = exp2(exponent);
    auto dropped = [&](Value x) { return drop(panel, row, v, x, getKeptFactor(op)); };
    Value gradient = dropped(load(gradients.buffer, atScore(row, v)));
    gradient = arith::SubFOp::create(b, gradient, deltaOf[v]);
    gradient = arith::MulFOp::create(b, weight, gradient);
    if (biasGrad)
      store(gradient, biasGradients.buffer, atScore(row, v));
    if (auto limit = op.getSoftCap()) {
      // The derivative of c tanh(x / c).
      Value slope = arith::MulFOp::create(
          b, capped, getSplat(1 / (limit->convertToDouble() * getUnit())));
      slope = arith::SubFOp::create(b, getSplat(1), arith::MulFOp::create(b, slope, slope));
      gradient = arith::MulFOp::create(b, gradient, slope);
    }
    storeWeights(row, v, dropped(weight), arith::MulFOp::create(b, gradient, getSplat(scale)));
    return Value();
  });
}

void AttentionGradient::storeWeights(Value row, int64_t vector, Value weight, Value gradient) {
  if (!plan.usesDot) {
    store(weight, scores.buffer, atScore(row, vector));
    store(gradient, gradients.buffer, atScore(row, vector));
    return;
  }
  Value place = add(rowsBase, at(row, vector));
  store(narrow(weight), weightRows.buffer, place);
  store(narrow(gradient), gradientRows.buffer, place);
}

void AttentionGradient::pairGradients() {
  auto getRow = [&](Value row, int64_t v) { return add(rowsBase, at(row, v)); };
  // The last pair may contain one row behind the last key.
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(getVector(plan.lanes, plan.element)));
  for (int64_t v = 0; v < vectors; ++v)
    store(zeros, gradientRows.buffer, getRow(to, v));
  loop(from, to, 2, [&](Value row) {
    for (int64_t v = 0; v < vectors; ++v) {
      Value lower = load(gradientRows.buffer, getRow(row, v));
      Value upper = load(gradientRows.buffer, getRow(add(row, 1), v));
      store(emitPairs(lower, upper), gradientPairs.buffer, at(div(row, 2), v));
    }
  });
}

void AttentionGradient::addToBias(Value panel, Value count) {
  Value base =
      add(mul(batchIndex, biasStrides[0]), mul(rem(unit, plan.queryHeads), biasStrides[1]));
  Value first = add(firstRow, mul(panel, width));
  auto getGradient = [&](Value row, Value i) {
    return loadScalar(biasGradients.buffer, add(atScore(row, 0), i));
  };
  auto addGradient = [&](Value row, Value i, Value gradient) {
    Value place = add(base, add(mul(add(first, i), biasStrides[2]),
                                mul(add(firstKey, row), biasStrides[3])));
    Value sum = arith::AddFOp::create(b, loadScalar(biasGrad, place), gradient);
    memref::StoreOp::create(b, sum, biasGrad, place);
  };
  // Where the bias broadcasts, the panel is summed separately, which keeps long sums exact.
  auto sum = [&](Value begin, Value end, Value init, function_ref<Value(Value, Value)> next) {
    return loop(begin, end, 1, init, [&](Value i, ValueRange known) {
             return SmallVector<Value>{next(i, known[0])};
           }).front();
  };
  auto sumRows = [&](Value row, Value init) {
    return sum(getIndex(0), count, init, [&](Value i, Value known) -> Value {
      return arith::AddFOp::create(b, known, getGradient(row, i));
    });
  };
  Value zero = getScalar(0);
  if (!biasStrides[2] && !biasStrides[3])
    return addGradient(from, getIndex(0), sum(from, to, zero, sumRows));
  if (!biasStrides[2])
    return loop(from, to, 1,
                [&](Value row) { addGradient(row, getIndex(0), sumRows(row, zero)); });
  if (!biasStrides[3])
    return loop(getIndex(0), count, 1, [&](Value i) {
      addGradient(from, i, sum(from, to, zero, [&](Value row, Value known) -> Value {
                    return arith::AddFOp::create(b, known, getGradient(row, i));
                  }));
    });
  loop(from, to, 1, [&](Value row) {
    loop(getIndex(0), count, 1, [&](Value i) { addGradient(row, i, getGradient(row, i)); });
  });
}

void AttentionGradient::emitPanel(Value panel) {
  rowsBase = mul(panel, scoreRows * width);
  scoresBase = plan.usesDot ? Value() : rowsBase;
  auto setCount = [&](Value count) {
    memref::StoreOp::create(b, arith::IndexCastOp::create(b, b.getI64Type(), count), counts.buffer,
                            panel);
  };
  auto emitAll = [&] {
    Value count = min(sub(numRows, mul(panel, width)), width);
    setCount(count);
    emitScores(panel);
    emitPanelProduct({value, valueBase, plan.valueFeatures, valueBlock, outPanels, outSteps,
                      gradients, std::nullopt},
                     panel);
    emitGradients(panel);
    if (biasGrad)
      addToBias(panel, count);
    auto addTo = [&](Value before, int64_t, Value sum) -> Value {
      return arith::AddFOp::create(b, before, sum);
    };
    if (plan.usesDot) {
      pairGradients();
      return emitColumnProduct({keyPairs.buffer, getIndex(0), plan.features, gradientPairs.buffer,
                                queryGradients, div(from, 2), div(add(to, 1), 2)},
                               panel, addTo);
    }
    Value keys = isWidened ? keyBlock.buffer : key;
    Value base = isWidened ? getIndex(0) : getFirstKey();
    emitColumnProduct({keys, base, plan.features, gradients.buffer, queryGradients, from, to},
                      panel, addTo);
  };
  if (!biasBlock.buffer)
    return emitAll();
  packBias(panel);
  when(isOpen(), emitAll, [&] { setCount(getIndex(0)); });
}

//===----------------------------------------------------------------------===//
// Gradients of keys and values
//===----------------------------------------------------------------------===//

void AttentionGradient::emitKeyTile(const KeyGradient &gradient, int64_t keys, Value row,
                                    Value column, int64_t count, int64_t size) {
  SmallVector<Value> sums(keys * count, getSplat(0));
  sums = loop(getIndex(0), numPanels, 1, sums, [&](Value panel, ValueRange before) {
    Value base = mul(panel, scoreRows * width);
    SmallVector<Value> places;
    for (int64_t i = 0; i < keys; ++i)
      places.push_back(add(base, mul(add(row, i), width)));
    Value steps = arith::IndexCastOp::create(b, b.getIndexType(), loadScalar(counts.buffer, panel));
    int64_t stepsOfPanel = width;
    if (plan.usesDot) {
      steps = div(add(steps, 1), 2);
      stepsOfPanel /= 2;
    }
    Value first = add(add(gradient.base, column), mul(panel, stepsOfPanel * gradient.columns));
    return loop(getIndex(0), steps, 1, before, [&](Value i, ValueRange known) {
      SmallVector<Value> vectors, next;
      for (int64_t v = 0; v < count; ++v)
        vectors.push_back(resize(load(gradient.rows, add(add(first, mul(i, gradient.columns)),
                                                         v * plan.lanes), size),
                                 plan.lanes));
      for (int64_t k = 0; k < keys; ++k) {
        Value weights = gradient.weights.buffer;
        Value weight = splat(plan.usesDot ? loadPair(weights, add(places[k], mul(i, 2)))
                                          : loadScalar(weights, add(places[k], i)));
        for (int64_t v = 0; v < count; ++v)
          next.push_back(accumulate(weight, vectors[v], known[k * count + v]));
      }
      return next;
    });
  });
  for (int64_t k = 0; k < keys; ++k)
    for (int64_t v = 0; v < count; ++v) {
      Value place = add(gradient.targetBase,
                        mul(add(add(firstKey, row), k), gradient.columns));
      place = add(add(place, column), v * plan.lanes);
      Value sum = arith::AddFOp::create(b, load(gradient.target, place, size),
                                        resize(sums[k * count + v], size));
      store(sum, gradient.target, place);
    }
}

void AttentionGradient::emitKeyGradients(const KeyGradient &gradient) {
  int64_t lanes = plan.lanes, columns = gradient.columns, most = 2;
  auto emitKeys = [&](int64_t keys, Value row) {
    int64_t whole = columns / (most * lanes) * most * lanes;
    if (whole)
      loop(getIndex(0), getIndex(whole), most * lanes,
           [&](Value column) { emitKeyTile(gradient, keys, row, column, most, lanes); });
    if (columns - whole >= lanes) {
      emitKeyTile(gradient, keys, row, getIndex(whole), 1, lanes);
      whole += lanes;
    }
    if (whole < columns)
      emitKeyTile(gradient, keys, row, getIndex(whole), 1, columns - whole);
  };
  int64_t keys = std::max<int64_t>(1, (processor.numVectorRegisters >= 32 ? 16 : 8) / most);
  Value whole = add(from, mul(div(sub(to, from), keys), keys));
  loop(from, whole, keys, [&](Value row) { emitKeys(keys, row); });
  loop(whole, to, 1, [&](Value row) { emitKeys(1, row); });
}

//===----------------------------------------------------------------------===//
// Blocks and items
//===----------------------------------------------------------------------===//

void AttentionGradient::emitBlock() {
  widenKeysAndValues();
  if (plan.usesDot)
    packPairs(key, plan.features, getFirstKey(), numKeys, keyPairs);
  from = getIndex(0);
  to = numKeys;
  if (plan.isOrdered()) {
    if (plan.right)
      to = min(to, sub(add(add(firstRow, numRows), *plan.right), firstKey));
    if (plan.left)
      from = max(from, sub(sub(firstRow, getIndex(*plan.left)), firstKey));
    if (plan.left && plan.usesDot)
      from = mul(div(from, 2), 2);
  }
  when(isBelow(from, to), [&] {
    loop(getIndex(0), numPanels, 1, [&](Value panel) { emitPanel(panel); });
    scoresBase = Value();
    Value row = add(mul(unit, plan.rows), firstRow);
    auto getRows = [&](Value source, const Region &copies, int64_t columns) {
      return copies.buffer ? std::pair(copies.buffer, getIndex(0))
                           : std::pair(source, mul(row, columns));
    };
    const Region &weights = plan.usesDot ? weightRows : scores;
    const Region &scoreGradients = plan.usesDot ? gradientRows : gradients;
    auto [outs, outBase] = getRows(cotangent, outRows, plan.valueFeatures);
    emitKeyGradients({weights, outs, outBase, plan.valueFeatures, valueGrad, valueBase});
    auto [queries, queryBase] = getRows(query, queryRows, plan.features);
    emitKeyGradients({scoreGradients, queries, queryBase, plan.features, keyGrad, keyBase});
  });
}

void AttentionGradient::emitRows() {
  packRows(query, plan.features, featureSteps, queryPanels);
  packRows(cotangent, plan.valueFeatures, outSteps, outPanels);
  packRowScalars();
  packDropRows();
  if (plan.isPositional())
    packPositions();
  if (biasElements)
    packBiasTerms();
  if (isWidened || plan.usesDot) {
    copyRows(query, plan.features, queryRows);
    copyRows(cotangent, plan.valueFeatures, outRows);
  }
  fill(queryGradients.buffer, getIndex(0),
       mul(numPanels, llvm::alignTo(plan.features, tileRows) * width));
  Value first = getIndex(0), last = numKeysOfRow;
  if (plan.isOrdered()) {
    if (plan.right)
      last = min(last, add(add(firstRow, numRows), *plan.right));
    if (plan.left)
      first = max(first, sub(firstRow, getIndex(*plan.left)));
  }
  loop(first, last, plan.blockKeys, [&](Value k) {
    firstKey = k;
    numKeys = min(sub(last, k), plan.blockKeys);
    if (!plan.isPositional() || plan.isOrdered())
      return emitBlock();
    keyBounds = getKeyBounds();
    when(isSeen(queryBounds, keyBounds), [&] { emitBlock(); });
  });
  emitResult(queryGradients, plan.features, queryGrad, nullptr);
}

void AttentionGradient::emitKeyHead(Value batchRow, Value keyHead) {
  startBatch(batchRow);
  Value keyUnit = add(mul(batchRow, plan.keyHeads), keyHead);
  keyBase = mul(keyUnit, plan.keyRows * plan.features);
  valueBase = mul(keyUnit, plan.keyRows * plan.valueFeatures);
  fill(keyGrad, keyBase, getIndex(plan.keyRows * plan.features));
  fill(valueGrad, valueBase, getIndex(plan.keyRows * plan.valueFeatures));
  int64_t unitsOfHead = plan.units / (plan.batch * plan.keyHeads);
  loop(getIndex(0), getIndex(unitsOfHead), 1, [&](Value i) {
    unit = add(mul(keyUnit, unitsOfHead), i);
    loop(getIndex(0), getIndex(plan.rows), plan.blockRows, [&](Value row) {
      firstRow = row;
      numRows = min(sub(getIndex(plan.rows), firstRow), plan.blockRows);
      numPanels = div(add(numRows, width - 1), width);
      emitRows();
    });
  });
}

void AttentionGradient::emitItem(Value item) {
  Value firstBatch = div(item, headItems), firstHead = rem(item, headItems);
  Value lastBatch = batchItems == plan.batch ? add(firstBatch, 1) : getIndex(plan.batch);
  Value lastHead = headItems == plan.keyHeads ? add(firstHead, 1) : getIndex(plan.keyHeads);
  if (biasGrad) {
    // The part of a row of the batch and a query head is contiguous.
    int64_t group = plan.queryHeads / plan.keyHeads;
    int64_t count = (biasStrides[2] ? plan.queries : 1) * (biasStrides[3] ? plan.keyRows : 1);
    Value heads = getIndex(biasStrides[1] ? group : 1);
    loop(getIndex(0), heads, 1, [&](Value i) {
      Value base = add(mul(firstBatch, biasStrides[0]),
                       mul(add(mul(firstHead, group), i), biasStrides[1]));
      fill(biasGrad, base, getIndex(count));
    });
  }
  loop(firstBatch, lastBatch, 1, [&](Value batchRow) {
    loop(firstHead, lastHead, 1, [&](Value keyHead) { emitKeyHead(batchRow, keyHead); });
  });
}

std::unique_ptr<AttentionEmitter> makeAttentionGradient(const AttentionKernel &kernel) {
  return std::make_unique<AttentionGradient>(kernel);
}

} // namespace meshwright::lower

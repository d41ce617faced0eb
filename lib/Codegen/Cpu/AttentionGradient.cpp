//===- AttentionGradient.cpp - the backward pass of attention -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionGradient.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

/// The most bytes of weights, and of their cotangents, of a block of rows. Rows that see more keys
/// do not balance delta.
static constexpr int64_t kMostBalancedBytes = int64_t(1) << 21;

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
  int64_t blocks = llvm::divideCeil(plan.keys, plan.blockKeys);
  int64_t bytes = blocks * scoreRows * columns * (compute.getIntOrFloatBitWidth() / 8);
  // The rounding of narrow elements is far above that of delta.
  balances = plan.element == compute && bytes <= kMostBalancedBytes;
  if (balances)
    columns *= std::max<int64_t>(blocks, 1);
  reserve(queryPanels, featureSteps * plan.blockRows, step);
  reserve(outPanels, outSteps * plan.blockRows, step);
  reserve(scores, scoreRows * columns, compute);
  reserve(gradients, scoreRows * columns, compute);
  if (hasBias)
    reserve(biasGradients, scoreRows * (plan.usesDot ? width : plan.blockRows), compute);
  if (balances)
    reserve(corrections, plan.blockRows, compute);
  if (balances && !hasAllKeys()) {
    reserve(largest, plan.blockRows, compute);
    reserve(totals, plan.blockRows, compute);
  }
  if (balances && op.getSoftCap())
    reserve(slopes, scoreRows * columns, compute);
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
  reserve(counts, balances ? panels * std::max<int64_t>(blocks, 1) : panels, b.getI64Type());
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
// Gradients of keys and values
//===----------------------------------------------------------------------===//

void AttentionGradient::emitKeyTile(const KeyGradient &gradient, int64_t keys, Value row,
                                    Value column, int64_t count, int64_t size) {
  SmallVector<Value> sums(keys * count, getSplat(0));
  sums = loop(getIndex(0), numPanels, 1, sums, [&](Value panel, ValueRange before) {
    Value base = mul(panel, scoreRows * width);
    if (balances)
      base = add(blockBase, base);
    SmallVector<Value> places;
    for (int64_t i = 0; i < keys; ++i)
      places.push_back(add(base, mul(add(row, i), width)));
    Value steps = getCount(panel);
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

void AttentionGradient::emitBlock(function_ref<void(Value)> panel, function_ref<void()> block) {
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
    loop(getIndex(0), numPanels, 1, panel);
    scoresBase = Value();
    if (block)
      block();
  });
}

void AttentionGradient::emitBlockGradients() {
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
}

void AttentionGradient::emitBlocks(Value first, Value last, function_ref<void(Value)> panel,
                                   function_ref<void()> block) {
  loop(first, last, plan.blockKeys, [&](Value k) {
    firstKey = k;
    numKeys = min(sub(last, k), plan.blockKeys);
    blockBase = countsBase = getIndex(0);
    if (balances) {
      Value number = div(sub(k, first), plan.blockKeys);
      blockBase = mul(number, scoreRows * plan.blockRows);
      countsBase = mul(number, plan.blockRows / width);
    }
    if (!plan.isPositional() || plan.isOrdered())
      return emitBlock(panel, block);
    keyBounds = getKeyBounds();
    when(isSeen(queryBounds, keyBounds), [&] { emitBlock(panel, block); });
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
  auto emitGradientsOfBlock = [&] { emitBlockGradients(); };
  auto emitWeightsOfPanel = [&](Value panel) { emitWeights(panel); };
  if (!balances) {
    emitBlocks(first, last, emitWeightsOfPanel, emitGradientsOfBlock);
  } else {
    for (const Region *region : {&corrections, &largest, &totals})
      if (region->buffer)
        fill(region->buffer, getIndex(0), mul(numPanels, width));
    emitBlocks(first, last, emitWeightsOfPanel, nullptr);
    emitCorrections();
    auto emitPanel = [&](Value panel) {
      startPanel(panel);
      when(isBelow(getIndex(0), getCount(panel)), [&] {
        emitBalancedGradients(panel);
        emitPanelGradients(panel);
      });
    };
    emitBlocks(first, last, emitPanel, emitGradientsOfBlock);
  }
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

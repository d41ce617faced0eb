//===- AttentionBlocks.cpp - attention with queries as lanes --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionBlocks.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

AttentionBlocks::AttentionBlocks(const AttentionKernel &kernel) : AttentionPanels(kernel) {
  Type compute = plan.compute;
  reserve(queryPanels, featureSteps * plan.blockRows, plan.usesDot ? getPairs() : compute);
  reserve(scores, (plan.blockKeys + tileRows) * width, compute);
  if (plan.usesDot) {
    reserve(probabilities, keySteps * width, getPairs());
    reserve(valuePairs, keySteps * plan.valueFeatures, getPairs());
  }
  reserve(results, llvm::alignTo(plan.valueFeatures, tileRows) * plan.blockRows, compute);
  reserve(maxima, plan.blockRows, compute);
  reserve(sums, plan.blockRows, compute);
  reserve(scales, width, compute);
  reservePositions();
  reserveKeysAndValues();
  reserveBias();
  reserveDropout();
}

void AttentionBlocks::emitProducts(Value panel) {
  Value buffer = plan.usesDot ? valuePairs.buffer : isWidened ? valueBlock.buffer : value;
  Value base = plan.usesDot || isWidened ? getIndex(0) : getFirstValue();
  Value firstStep = plan.usesDot ? div(from, 2) : from;
  Value lastStep = plan.usesDot ? div(add(to, 1), 2) : to;
  SmallVector<Value> factors;
  for (int64_t v = 0; v < vectors; ++v)
    factors.push_back(load(scales.buffer, getIndex(v * plan.lanes)));
  Value weights = plan.usesDot ? probabilities.buffer : scores.buffer;
  emitColumnProduct(
      {buffer, base, plan.valueFeatures, weights, results, firstStep, lastStep}, panel,
      [&](Value before, int64_t v, Value sum) { return fma(before, factors[v], sum); });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

void AttentionBlocks::emitProbabilities(Value panel) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  // The last pair may contain one row behind the last key.
  if (plan.usesDot)
    for (int64_t v = 0; v < vectors; ++v)
      store(lowest, scores.buffer, at(to, v));
  SmallVector<Value> before;
  auto atVector = [&](int64_t v) { return mul(getGroup(panel, v), plan.lanes); };
  for (int64_t v = 0; v < vectors; ++v)
    before.push_back(load(maxima.buffer, atVector(v)));

  SmallVector<Value> found = visitMasked(
      panel, before, [&](Value row, int64_t v, Value, Value score, Value known) -> Value {
        // A score that is still the product stays where it is.
        if (!score.getDefiningOp<vector::LoadOp>())
          store(score, scores.buffer, at(row, v));
        return larger(known, score);
      });
  SmallVector<Value> guarded, zeros;
  for (int64_t v = 0; v < vectors; ++v) {
    store(found[v], maxima.buffer, atVector(v));
    guarded.push_back(guard(found[v]));
    store(exponentiate(before[v], guarded[v]), scales.buffer, getIndex(v * plan.lanes));
    zeros.push_back(getSplat(0));
  }
  SmallVector<Value> added =
      loop(from, to, plan.usesDot ? 2 : 1, zeros, [&](Value row, ValueRange known) {
        SmallVector<Value> result;
        for (int64_t v = 0; v < vectors; ++v) {
          Value first = exponentiate(load(scores.buffer, at(row, v)), guarded[v]);
          Value sum = arith::AddFOp::create(b, known[v], first);
          first = drop(panel, row, v, first, 1);
          if (!plan.usesDot) {
            store(first, scores.buffer, at(row, v));
            result.push_back(sum);
            continue;
          }
          Value next = add(row, 1);
          Value second = exponentiate(load(scores.buffer, at(next, v)), guarded[v]);
          result.push_back(arith::AddFOp::create(b, sum, second));
          second = drop(panel, next, v, second, 1);
          store(emitPairs(narrow(first), narrow(second)), probabilities.buffer, at(div(row, 2), v));
        }
        return result;
      });
  for (int64_t v = 0; v < vectors; ++v) {
    Value sum = load(sums.buffer, atVector(v));
    Value scale = load(scales.buffer, getIndex(v * plan.lanes));
    store(fma(sum, scale, added[v]), sums.buffer, atVector(v));
  }
}

//===----------------------------------------------------------------------===//
// An item
//===----------------------------------------------------------------------===//

/// Emits the update of a panel by a block of keys.
void AttentionBlocks::emitPanel(Value panel) {
  from = getIndex(0);
  to = numKeys;
  Value isRead;
  if (plan.isPositional() && !plan.isOrdered()) {
    isRead = isSeen(getPanelBounds(panel), keyBounds);
  } else if (plan.isPositional()) {
    Value first = add(firstRow, mul(panel, width));
    Value last = sub(min(add(first, width), plan.rows), getIndex(1));
    if (plan.right)
      to = min(to, sub(add(last, *plan.right + 1), firstKey));
    if (plan.left) {
      from = max(from, sub(sub(first, getIndex(*plan.left)), firstKey));
      if (plan.usesDot)
        from = mul(div(from, 2), 2);
    }
  }
  if (!isRead)
    isRead = isBelow(from, to);
  when(isRead, [&] {
    auto emitAll = [&] {
      emitScores(panel);
      emitProbabilities(panel);
      emitProducts(panel);
    };
    if (!biasBlock.buffer)
      return emitAll();
    packBias(panel);
    when(isOpen(), emitAll);
  });
}

void AttentionBlocks::emitLogSumExp() {
  if (hasWideLogSumExp(op)) {
    Value start = add(mul(unit, plan.rows), firstRow);
    loop(getIndex(0), numRows, 1, [&](Value i) {
      Value wide = emitWideLogSumExp(b, op, loadScalar(sums.buffer, i), loadScalar(maxima.buffer, i));
      memref::StoreOp::create(b, wide, lse, add(start, i));
    });
    return;
  }
  loop(getIndex(0), mul(numPanels, width), plan.lanes, [&](Value i) {
    store(getLogSumExp(load(sums.buffer, i), load(maxima.buffer, i)), maxima.buffer, i);
  });
  Value base = add(mul(unit, plan.rows), firstRow);
  loop(getIndex(0), numRows, 1, [&](Value i) {
    memref::StoreOp::create(b, loadScalar(maxima.buffer, i), lse, add(base, i));
  });
}

void AttentionBlocks::emitNothing() {
  auto fill = [&](Value buffer, int64_t columns, Value value) {
    Value base = mul(add(mul(unit, plan.rows), firstRow), columns);
    loop(getIndex(0), mul(numRows, columns), 1,
         [&](Value i) { memref::StoreOp::create(b, value, buffer, add(base, i)); });
  };
  fill(result, plan.valueFeatures, emitConstant(b, plan.element, 0));
  if (lse)
    fill(lse, 1,
         emitConstant(b, cast<MemRefType>(lse.getType()).getElementType(),
                      -std::numeric_limits<double>::infinity()));
}

void AttentionBlocks::emitRows(Value first, Value last) {
  packRows(query, plan.features, featureSteps, queryPanels);
  packDropRows();
  auto fill = [&](Region &region, Value count, double value) {
    loop(getIndex(0), count, plan.lanes,
         [&](Value i) { store(getSplat(value), region.buffer, i); });
  };
  Value lanes = mul(numPanels, width);
  fill(maxima, lanes, -std::numeric_limits<double>::infinity());
  fill(sums, lanes, 0);
  fill(results, mul(lanes, llvm::alignTo(plan.valueFeatures, tileRows)), 0);

  auto emitBlock = [&] {
    widenKeysAndValues();
    if (plan.usesDot)
      packPairs(value, plan.valueFeatures, getFirstValue(), numKeys, valuePairs);
    loop(getIndex(0), numPanels, 1, [&](Value panel) { emitPanel(panel); });
  };
  loop(first, last, plan.blockKeys, [&](Value k) {
    firstKey = k;
    numKeys = min(sub(last, k), plan.blockKeys);
    if (!plan.isPositional() || plan.isOrdered())
      return emitBlock();
    keyBounds = getKeyBounds();
    when(isSeen(queryBounds, keyBounds), emitBlock);
  });
  emitResult(results, plan.valueFeatures, result, &sums);
  if (lse)
    emitLogSumExp();
}

void AttentionBlocks::emitItem(Value item) {
  unit = div(item, plan.blocks);
  Value block = rem(item, plan.blocks);
  if (plan.right && !plan.left && plan.blocks > 1) {
    // Later blocks see more keys. (If positions are operands, this holds if they grow, as they
    // do in all orders of tokens.) Items alternate between the first and the last blocks, so
    // that equal shares of the items are equal work.
    Value half = div(block, 2);
    Value isFirst = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, rem(block, 2), getIndex(0));
    block = arith::SelectOp::create(b, isFirst, half, sub(getIndex(plan.blocks - 1), half));
  }
  firstRow = mul(block, plan.blockRows);
  numRows = min(sub(getIndex(plan.rows), firstRow), plan.blockRows);
  numPanels = div(add(numRows, width - 1), width);
  Value keyUnit = div(unit, plan.units / (plan.batch * plan.keyHeads));
  startBatch(div(unit, plan.units / plan.batch));
  keyBase = mul(keyUnit, plan.keyRows * plan.features);
  valueBase = mul(keyUnit, plan.keyRows * plan.valueFeatures);

  if (plan.isPositional())
    packPositions();
  if (biasElements)
    packBiasTerms();
  Value first = getIndex(0), last = numKeysOfRow;
  if (plan.isOrdered()) {
    if (plan.right)
      last = min(last, add(add(firstRow, numRows), *plan.right));
    if (plan.left)
      first = max(first, sub(firstRow, getIndex(*plan.left)));
    return emitRows(first, last);
  }
  if (!plan.isPositional())
    return emitRows(first, last);
  // The first and the last block of keys that some query sees.
  SmallVector<Value> ends =
      loop(first, last, plan.blockKeys, ValueRange{last, first}, [&](Value k, ValueRange known) {
        firstKey = k;
        numKeys = min(sub(last, k), plan.blockKeys);
        Value seen = isSeen(queryBounds, getKeyBounds());
        auto choose = [&](Value end, Value otherwise) -> Value {
          return arith::SelectOp::create(b, seen, end, otherwise);
        };
        return SmallVector<Value>{choose(min(known[0], k), known[0]),
                                  choose(add(k, numKeys), known[1])};
      });
  when(isBelow(ends[0], ends[1]), [&] { emitRows(ends[0], ends[1]); }, [&] { emitNothing(); });
}

std::unique_ptr<AttentionEmitter> makeAttentionBlocks(const AttentionKernel &kernel) {
  return std::make_unique<AttentionBlocks>(kernel);
}

} // namespace meshwright::lower

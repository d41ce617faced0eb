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

AttentionBlocks::AttentionBlocks(const AttentionKernel &kernel) : AttentionEmitter(kernel) {
  vectors = plan.blockRows > plan.lanes ? 2 : 1;
  width = vectors * plan.lanes;
  tileRows = processor.numVectorRegisters >= 32 ? 16 / vectors : 8 / vectors;
  featureSteps = plan.usesDot ? plan.features / 2 : plan.features;
  keySteps = plan.usesDot ? plan.blockKeys / 2 : plan.blockKeys;
  isWidened = !plan.usesDot && plan.element != plan.compute;

  Type compute = plan.compute;
  reserve(queryPanels, featureSteps * plan.blockRows, plan.usesDot ? getPairs() : compute);
  reserve(scores, (plan.blockKeys + tileRows) * width, compute);
  if (plan.usesDot)
    reserve(probabilities, keySteps * width, getPairs());
  reserve(results, llvm::alignTo(plan.valueFeatures, tileRows) * plan.blockRows, compute);
  reserve(maxima, plan.blockRows, compute);
  reserve(sums, plan.blockRows, compute);
  reserve(scales, width, compute);
  if (plan.isPositional())
    reserve(positions, plan.blockRows, getPlaceType());
  if (plan.isPositional() && !plan.isOrdered()) {
    reserve(lowestOfPanel, plan.blockRows / width, getPlaceType());
    reserve(highestOfPanel, plan.blockRows / width, getPlaceType());
  }
  if (isWidened)
    reserve(keyBlock, plan.blockKeys * plan.features, compute);
  if (isWidened)
    reserve(valueBlock, plan.blockKeys * plan.valueFeatures, compute);
  else if (plan.usesDot)
    reserve(valueBlock, keySteps * plan.valueFeatures, getPairs());
  // Columns are copied by vectors from the beginning of the window on, so some columns before
  // and behind the block may be copied, too.
  if (biasStrides[2] && biasStrides[3])
    reserve(biasBlock, (2 * plan.lanes + plan.blockKeys) * width, compute);
  if (!biasElements)
    return;
  points.emplace(op, /*queriesAreColumns=*/true);
  biasTerms.resize(points->columnTerms.size());
  for (auto [region, term] : llvm::zip_equal(biasTerms, points->columnTerms))
    reserve(region, plan.blockRows, getRowStorageType(getElementTypeOrSelf(term.first.getType())));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

SmallVector<Value> AttentionBlocks::emitTile(int64_t numRows, Value from, Value to, ValueRange init,
                                             function_ref<Value(int64_t, Value)> scalar,
                                             function_ref<Value(int64_t, Value)> vector) {
  return loop(from, to, 1, init, [&](Value k, ValueRange sums) {
    SmallVector<Value> columns, result;
    auto wide = getVector(2 * plan.lanes, b.getBF16Type());
    auto toPairs = [&](Value pairs) -> Value {
      return plan.usesDot ? vector::BitCastOp::create(b, wide, pairs).getResult() : pairs;
    };
    for (int64_t v = 0; v < vectors; ++v)
      columns.push_back(toPairs(vector(v, k)));
    for (int64_t i = 0; i < numRows; ++i) {
      Value row = toPairs(splat(scalar(i, k)));
      for (int64_t v = 0; v < vectors; ++v) {
        Value sum = sums[i * vectors + v];
        result.push_back(plan.usesDot ? dot(row, columns[v], sum) : fma(row, columns[v], sum));
      }
    }
    return result;
  });
}

void AttentionBlocks::emitScores(Value panel) {
  loop(from, to, tileRows, [&](Value first) {
    SmallVector<Value> rows;
    for (int64_t i = 0; i < tileRows; ++i) {
      Value row = add(first, i);
      if (isWidened) {
        rows.push_back(mul(min(row, sub(numKeys, getIndex(1))), plan.features));
        continue;
      }
      // Rows behind the last key repeat it. No op reads their scores.
      row = add(firstKey, row);
      if (plan.keys % tileRows || plan.left)
        row = min(row, plan.keys - 1);
      rows.push_back(add(keyBase, mul(row, plan.features)));
    }
    SmallVector<Value> init(tileRows * vectors, getSplat(0));
    SmallVector<Value> sums = emitTile(
        tileRows, getIndex(0), getIndex(featureSteps), init,
        [&](int64_t i, Value k) -> Value {
          if (!plan.usesDot)
            return loadScalar(isWidened ? keyBlock.buffer : key, add(rows[i], k));
          Value pair = load(key, add(rows[i], mul(k, 2)), 2);
          return vector::ExtractOp::create(
              b, vector::BitCastOp::create(b, getVector(1, getPairs()), pair), 0);
        },
        [&](int64_t v, Value k) {
          return load(queryPanels.buffer, at(panel, featureSteps, k, v));
        });
    Value factor = getSplat(getFactor());
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v)
        store(arith::MulFOp::create(b, sums[i * vectors + v], factor), scores.buffer,
              at(add(first, i), v));
  });
}

void AttentionBlocks::emitProducts(Value panel) {
  int64_t rowsOfPanel = llvm::alignTo(plan.valueFeatures, tileRows);
  Value buffer = valueBlock.buffer ? valueBlock.buffer : value;
  Value base = valueBlock.buffer ? getIndex(0) : add(valueBase, mul(firstKey, plan.valueFeatures));
  Value probabilityBuffer = plan.usesDot ? probabilities.buffer : scores.buffer;
  Value firstStep = plan.usesDot ? div(from, 2) : from;
  Value lastStep = plan.usesDot ? div(add(to, 1), 2) : to;
  SmallVector<Value> factors;
  for (int64_t v = 0; v < vectors; ++v)
    factors.push_back(load(scales.buffer, getIndex(v * plan.lanes)));
  loop(getIndex(0), getIndex(plan.valueFeatures), tileRows, [&](Value first) {
    SmallVector<Value> columns;
    for (int64_t i = 0; i < tileRows; ++i) {
      Value column = add(first, i);
      if (plan.valueFeatures % tileRows)
        column = min(column, plan.valueFeatures - 1);
      columns.push_back(add(base, column));
    }
    // Each block is summed separately and then added, which keeps long sums exact.
    SmallVector<Value> init(tileRows * vectors, getSplat(0));
    SmallVector<Value> sums = emitTile(
        tileRows, firstStep, lastStep, init,
        [&](int64_t i, Value k) {
          return loadScalar(buffer, add(columns[i], mul(k, plan.valueFeatures)));
        },
        [&](int64_t v, Value k) { return load(probabilityBuffer, at(k, v)); });
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v) {
        Value place = at(panel, rowsOfPanel, add(first, i), v);
        store(fma(load(results.buffer, place), factors[v], sums[i * vectors + v]), results.buffer,
              place);
      }
  });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

SmallVector<Value> AttentionBlocks::emitMaxima(Value panel, bool masked, ValueRange before) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  SmallVector<Value> lower, upper, biases(vectors);
  for (int64_t v = 0; v < vectors; ++v) {
    if (masked && plan.isPositional()) {
      Value place = load(positions.buffer, mul(getGroup(panel, v), plan.lanes));
      auto shifted = [&](int64_t by) -> Value {
        return arith::AddIOp::create(b, place, splat(getPlace(by)));
      };
      lower.push_back(plan.left ? shifted(-*plan.left) : Value());
      upper.push_back(plan.right ? shifted(*plan.right) : Value());
    }
  }
  Value biasBase;
  if (bias) {
    biasBase =
        add(mul(batchIndex, biasStrides[0]), mul(rem(unit, plan.queryHeads), biasStrides[1]));
    if (!biasStrides[3])
      for (int64_t v = 0; v < vectors; ++v) {
        SmallVector<Value> elements;
        for (int64_t lane = 0; lane < plan.lanes; ++lane)
          elements.push_back(loadScalar(
              bias, add(biasBase, mul(getRow(getGroup(panel, v), lane), biasStrides[2]))));
        biases[v] =
            widen(vector::FromElementsOp::create(b, getVector(plan.lanes, plan.element), elements));
      }
  }
  bool changes = masked || hasCap() || op.getBias();
  return loop(from, to, 1, before, [&](Value row, ValueRange known) {
    Value absolute = add(firstKey, row);
    Value keep;
    if (padding) {
      Value byte = loadScalar(padding, add(mul(batchIndex, plan.keyRows), absolute));
      keep = fromStorage(b, byte, b.getI1Type());
    }
    Value placeOfKey;
    Value rowBias;
    if (bias && biasStrides[3] && !biasStrides[2])
      rowBias = splat(widen(loadScalar(bias, add(biasBase, absolute))));
    SmallVector<Value> found;
    for (int64_t v = 0; v < vectors; ++v) {
      Value score = load(scores.buffer, at(row, v));
      score = cap(score);
      if (op.getBias()) {
        Value term = biases[v] ? biases[v]
                     : rowBias ? rowBias
                               : load(biasBlock.buffer, at(add(row, plan.lanes), v));
        score = arith::AddFOp::create(b, score, term);
      }
      Value seen;
      if (masked && plan.isPositional()) {
        if (!placeOfKey) {
          Value place = plan.hasPositions ? getKeyPlace(absolute) : toPlace(absolute);
          placeOfKey = splat(place);
          if (plan.hasPositions)
            keep = both(keep, isKey(place));
        }
        auto compare = [&](arith::CmpIPredicate predicate, Value limit) {
          seen = both(seen, arith::CmpIOp::create(b, predicate, placeOfKey, limit));
        };
        if (lower[v])
          compare(arith::CmpIPredicate::sge, lower[v]);
        if (upper[v])
          compare(arith::CmpIPredicate::sle, upper[v]);
      }
      if (seen)
        score = arith::SelectOp::create(b, seen, score, lowest);
      if (keep)
        score = arith::SelectOp::create(b, keep, score, lowest);
      if (changes)
        store(score, scores.buffer, at(row, v));
      found.push_back(larger(known[v], score));
    }
    return found;
  });
}

void AttentionBlocks::emitProbabilities(Value panel) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  // The last pair may contain one row behind the last key.
  if (plan.usesDot)
    for (int64_t v = 0; v < vectors; ++v)
      store(lowest, scores.buffer, at(to, v));
  SmallVector<Value> before;
  auto getPlace = [&](int64_t v) { return mul(getGroup(panel, v), plan.lanes); };
  for (int64_t v = 0; v < vectors; ++v)
    before.push_back(load(maxima.buffer, getPlace(v)));

  SmallVector<Value> found;
  if (!plan.isPositional()) {
    found = emitMaxima(panel, /*masked=*/bool(padding), before);
  } else {
    // True if some query of the panel does not see all of its keys.
    Value masked;
    auto require = [&](Value condition) {
      masked = masked ? arith::OrIOp::create(b, masked, condition).getResult() : condition;
    };
    if (!plan.isOrdered()) {
      Value none = arith::ConstantIntOp::create(b, b.getI1Type(), 0);
      Value whole = isWhollySeen(getPanelBounds(panel), keyBounds);
      masked = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, whole, none);
    } else {
      Value first = add(firstRow, mul(panel, width));
      Value last = min(add(first, width), plan.rows);
      if (plan.right) // last key > first query + right
        require(isBelow(add(first, *plan.right + 1), add(firstKey, to)));
      if (plan.left) // first key < last query - left
        require(isBelow(add(add(firstKey, from), *plan.left + 1), last));
    }
    if (padding)
      masked = arith::ConstantIntOp::create(b, b.getI1Type(), 1);
    found = choose(
        masked, [&] { return emitMaxima(panel, true, before); },
        [&] { return emitMaxima(panel, false, before); });
  }

  SmallVector<Value> guarded, zeros;
  for (int64_t v = 0; v < vectors; ++v) {
    store(found[v], maxima.buffer, getPlace(v));
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
          if (!plan.usesDot) {
            store(first, scores.buffer, at(row, v));
            result.push_back(sum);
            continue;
          }
          Value second = exponentiate(load(scores.buffer, at(add(row, 1), v)), guarded[v]);
          result.push_back(arith::AddFOp::create(b, sum, second));
          auto getBits = [&](Value values) -> Value {
            Value bits =
                vector::BitCastOp::create(b, getVector(plan.lanes, b.getI16Type()), narrow(values));
            return arith::ExtUIOp::create(b, getVector(plan.lanes, getPairs()), bits);
          };
          auto half =
              DenseElementsAttr::get(getVector(plan.lanes, getPairs()), b.getI32IntegerAttr(16));
          Value high =
              arith::ShLIOp::create(b, getBits(second), arith::ConstantOp::create(b, half));
          store(arith::OrIOp::create(b, getBits(first), high), probabilities.buffer,
                at(div(row, 2), v));
        }
        return result;
      });
  for (int64_t v = 0; v < vectors; ++v) {
    Value sum = load(sums.buffer, getPlace(v));
    Value scale = load(scales.buffer, getIndex(v * plan.lanes));
    store(fma(sum, scale, added[v]), sums.buffer, getPlace(v));
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

void AttentionBlocks::emitResult() {
  int64_t columns = plan.valueFeatures, present = std::min(columns, plan.lanes);
  int64_t rowsOfPanel = llvm::alignTo(columns, tileRows);
  Value base = mul(unit, plan.rows * columns);
  loop(getIndex(0), mul(numPanels, vectors), 1, [&](Value group) {
    Value panel = div(group, vectors);
    Value start = add(mul(panel, rowsOfPanel * width), mul(rem(group, vectors), plan.lanes));
    Value factor = invert(load(sums.buffer, mul(group, plan.lanes)));
    SmallVector<Value> rows;
    for (int64_t i = 0; i < plan.lanes; ++i)
      rows.push_back(add(base, mul(getRow(group, i), columns)));
    auto emitChunk = [&](Value column) {
      SmallVector<Value> vectors;
      for (int64_t j = 0; j < plan.lanes; ++j)
        vectors.push_back(
            j < present
                ? arith::MulFOp::create(
                      b, load(results.buffer, add(start, mul(add(column, j), width))), factor)
                      .getResult()
                : getSplat(0));
      transpose(vectors);
      // Lanes that repeat the last row write its values once more.
      for (int64_t i = 0; i < plan.lanes; ++i)
        store(narrow(resize(vectors[i], present)), result, add(rows[i], column));
    };
    if (columns <= plan.lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(columns), plan.lanes,
         [&](Value column) { emitChunk(min(column, columns - plan.lanes)); });
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
  packQueries();
  auto fill = [&](Region &region, Value count, double value) {
    loop(getIndex(0), count, plan.lanes,
         [&](Value i) { store(getSplat(value), region.buffer, i); });
  };
  Value lanes = mul(numPanels, width);
  fill(maxima, lanes, -std::numeric_limits<double>::infinity());
  fill(sums, lanes, 0);
  fill(results, mul(lanes, llvm::alignTo(plan.valueFeatures, tileRows)), 0);

  auto emitBlock = [&] {
    packKeysAndValues();
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
  emitResult();
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

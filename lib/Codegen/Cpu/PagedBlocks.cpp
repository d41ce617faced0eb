//===- PagedBlocks.cpp - paged attention of blocks of tokens --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Rows, which are the heads of the first token, then those of the next one, are lanes. Panels are as
// those of nn.attention (AttentionPanels.h). Keys are read in their pages. Where arithmetic has another
// type than memory, or reads pairs, a block of them is copied to the workspace first, once for all
// panels. So is a block of values of several heads: each of its rows would be in a page of memory of
// its own, and products read all rows for a few columns.
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/PagedEmitter.h"

#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

void PagedEmitter::reserveBlocks() {
  int64_t rows = plan.getBlockRows();
  vectors = rows > lanes ? 2 : 1;
  width = vectors * lanes;
  tileRows = processor.numVectorRegisters >= 32 ? 16 / vectors : 8 / vectors;
  featureSteps = plan.usesDot ? plan.features / 2 : plan.features;
  Type pairs = b.getI32Type(), position = b.getI32Type();
  reserve(queryPanels, featureSteps * rows, plan.usesDot ? pairs : compute);
  reserve(scores, (kBlockKeys + tileRows) * width, compute);
  copiesKeys = element != compute;
  copiesValues = (copiesKeys || plan.keyHeads > 1) && !(plan.sharesPages && !plan.usesDot);
  if (copiesKeys)
    reserve(keyBlock, kBlockKeys * plan.features, plan.usesDot ? element : compute);
  if (plan.usesDot) {
    reserve(probabilities, kBlockKeys / 2 * width, pairs);
    reserve(valueBlock, kBlockKeys / 2 * plan.valueFeatures, pairs);
  } else if (copiesValues) {
    reserve(valueBlock, kBlockKeys * plan.valueFeatures, compute);
  }
  reserve(results, llvm::alignTo(plan.valueFeatures, tileRows) * rows, compute);
  reserve(maxima, rows, compute);
  reserve(sums, rows, compute);
  reserve(scales, width, compute);
  reserve(rowsOfQuery, rows, b.getI64Type());
  reserve(uppers, rows, position);
  reserve(lowers, rows, position);
  if (op.getSlopes() || op.getDistances())
    reserve(positions, rows, position);
  if (op.getSlopes())
    reserve(rowSlopes, rows, compute);
  if (op.getDistances())
    reserve(rowOrigins, rows, position);
  if (op.getSinks())
    reserve(rowSinks, rows, compute);
}

//===----------------------------------------------------------------------===//
// Operands
//===----------------------------------------------------------------------===//

void PagedEmitter::packRows() {
  auto toI32 = [&](Value index) { return arith::IndexCastOp::create(b, b.getI32Type(), index).getResult(); };
  loop(getIndex(0), mul(numPanels, width), 1, [&](Value i) {
    Value row = min(i, sub(numRows, getIndex(1)));
    auto keep = [&](Value value, const Region &region) { memref::StoreOp::create(b, value, region.buffer, i); };
    keep(arith::IndexCastOp::create(b, b.getI64Type(), getQueryRow(row)), rowsOfQuery);
    Value seen = getSeen(add(firstToken, div(row, plan.blockHeads)));
    keep(toI32(toLocal(seen)), uppers);
    keep(toI32(toLocal(getFirstSeen(seen))), lowers);
    if (slopes || distances)
      keep(toI32(sub(seen, getIndex(1))), positions);
    if (slopes)
      keep(loadPerHead(slopes, row), rowSlopes);
    if (distances)
      keep(getBiasOrigin(row), rowOrigins);
    if (sinks)
      keep(loadPerHead(sinks, row), rowSinks);
  });
}

void PagedEmitter::packQueries() {
  int64_t present = std::min(featureSteps, lanes);
  loop(getIndex(0), mul(numPanels, vectors), 1, [&](Value part) {
    Value panel = div(part, vectors);
    Value start = add(mul(panel, featureSteps * width), mul(rem(part, vectors), lanes));
    SmallVector<Value> rows;
    for (int64_t i = 0; i < lanes; ++i) {
      Value row = loadNumber(rowsOfQuery.buffer, add(mul(part, lanes), i));
      rows.push_back(mul(add(queryBase, row), plan.features));
    }
    // The last vector of a row overlaps the one before.
    auto emitChunk = [&](Value column) {
      SmallVector<Value> found;
      for (int64_t i = 0; i < lanes; ++i) {
        if (!plan.usesDot) {
          found.push_back(resize(widen(load(query, add(rows[i], column), present)), lanes));
          continue;
        }
        Value elements = load(query, add(rows[i], mul(column, 2)), 2 * present);
        found.push_back(
            resize(vector::BitCastOp::create(b, getVector(present, b.getI32Type()), elements), lanes));
      }
      transpose(found);
      for (int64_t j = 0; j < present; ++j)
        store(found[j], queryPanels.buffer, add(start, mul(add(column, j), width)));
    };
    if (featureSteps <= lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(featureSteps), lanes,
         [&](Value column) { emitChunk(min(column, featureSteps - lanes)); });
  });
}

void PagedEmitter::copyRows(Value source, int64_t stride, int64_t columns, const Region &target) {
  Type type = target.type;
  int64_t size = plan.usesDot ? 2 * lanes : lanes, present = std::min(columns, size);
  loop(getIndex(0), numKeys, 1, [&](Value key) {
    Value row = mul(getRow(key), stride), place = mul(key, columns);
    auto copy = [&](Value column) {
      Value elements = load(source, add(row, column), present);
      store(emitCast(b, elements, type), target.buffer, add(place, column));
    };
    if (columns <= size)
      return copy(getIndex(0));
    loop(getIndex(0), getIndex(columns), size, [&](Value column) { copy(min(column, columns - size)); });
  });
}

void PagedEmitter::packValuePairs() {
  int64_t columns = plan.valueFeatures, present = std::min(columns, lanes);
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(getVector(present, element)));
  loop(getIndex(0), numKeys, 2, [&](Value key) {
    Value isRow = isBelow(add(key, 1), numKeys);
    // Behind the last key, its row is repeated.
    Value lower = getValueRow(key), upper = getValueRow(add(key, 1)), place = mul(div(key, 2), columns);
    auto emitChunk = [&](Value column) {
      Value high = arith::SelectOp::create(b, isRow, load(values, add(upper, column), present), zeros);
      store(emitPairs(load(values, add(lower, column), present), high), valueBlock.buffer, add(place, column));
    };
    if (columns <= lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(columns), lanes, [&](Value column) { emitChunk(min(column, columns - lanes)); });
  });
}

Value PagedEmitter::emitPairs(Value lower, Value upper) {
  int64_t size = cast<VectorType>(lower.getType()).getDimSize(0);
  auto type = getVector(size, b.getI32Type());
  auto getBits = [&](Value vector) -> Value {
    Value bits = vector::BitCastOp::create(b, getVector(size, b.getI16Type()), vector);
    return arith::ExtUIOp::create(b, type, bits);
  };
  Value high = arith::ShLIOp::create(b, getBits(upper), emitConstant(b, type, 16));
  return arith::OrIOp::create(b, getBits(lower), high);
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

Value PagedEmitter::accumulate(Value a, Value c, Value sum) {
  if (!plan.usesDot)
    return fma(a, c, sum);
  auto wide = getVector(2 * lanes, b.getBF16Type());
  return dot(vector::BitCastOp::create(b, wide, a), vector::BitCastOp::create(b, wide, c), sum);
}

SmallVector<Value> PagedEmitter::emitTile(Value from, Value to, function_ref<Value(Value)> row,
                                          function_ref<Value(int64_t, Value)> scalar,
                                          function_ref<Value(int64_t, Value)> vector) {
  SmallVector<Value> init(tileRows * vectors, getSplat(0));
  return loop(from, to, 1, init, [&](Value k, ValueRange known) {
    SmallVector<Value> columns, products;
    for (int64_t v = 0; v < vectors; ++v)
      columns.push_back(vector(v, k));
    Value start = row(k);
    for (int64_t i = 0; i < tileRows; ++i) {
      Value factor = splat(scalar(i, start));
      for (int64_t v = 0; v < vectors; ++v)
        products.push_back(accumulate(factor, columns[v], known[i * vectors + v]));
    }
    return products;
  });
}

void PagedEmitter::emitScores(Value panel) {
  Value base = mul(panel, featureSteps * width);
  loop(from, to, tileRows, [&](Value first) {
    SmallVector<Value> rows;
    for (int64_t i = 0; i < tileRows; ++i) {
      // Rows behind the last key repeat it. No op reads their scores.
      Value key = add(first, i);
      rows.push_back(copiesKeys ? mul(min(key, sub(numKeys, getIndex(1))), plan.features) : getKeyRow(key));
    }
    SmallVector<Value> tile = emitTile(
        getIndex(0), getIndex(featureSteps), [](Value k) { return k; },
        [&](int64_t i, Value k) -> Value {
          if (!plan.usesDot)
            return loadScalar(copiesKeys ? keyBlock.buffer : keys, add(rows[i], k));
          Value pair = load(keyBlock.buffer, add(rows[i], mul(k, 2)), 2);
          pair = vector::BitCastOp::create(b, getVector(1, b.getI32Type()), pair);
          return vector::ExtractOp::create(b, pair, 0);
        },
        [&](int64_t v, Value k) { return load(queryPanels.buffer, add(base, at(k, v))); });
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v)
        store(arith::MulFOp::create(b, tile[i * vectors + v], getSplat(getFactor())), scores.buffer,
              at(add(first, i), v));
  });
}

void PagedEmitter::emitProducts(Value panel) {
  int64_t columns = plan.valueFeatures, rowsOfPanel = llvm::alignTo(columns, tileRows);
  Value block = copiesValues ? valueBlock.buffer : copiesKeys ? keyBlock.buffer : values;
  int64_t stride = copiesValues ? columns : plan.features;
  Value first = plan.usesDot ? div(from, 2) : from, last = plan.usesDot ? div(add(to, 1), 2) : to;
  Value weights = plan.usesDot ? probabilities.buffer : scores.buffer;
  loop(getIndex(0), getIndex(columns), tileRows, [&](Value column) {
    SmallVector<Value> tile = emitTile(
        first, last, [&](Value k) { return block == values ? getValueRow(k) : mul(k, stride); },
        [&](int64_t i, Value row) {
          Value own = add(column, i);
          return loadScalar(block, add(row, columns % tileRows ? min(own, columns - 1) : own));
        },
        [&](int64_t v, Value k) { return load(weights, at(k, v)); });
    // Each block is summed separately and then added, which keeps long sums exact.
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v) {
        Value place = at(add(add(mul(panel, rowsOfPanel), column), i), v);
        Value scale = load(scales.buffer, getIndex(v * lanes));
        store(fma(load(results.buffer, place), scale, tile[i * vectors + v]), results.buffer, place);
      }
  });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

Value PagedEmitter::getScore(Value panel, Value key, int64_t vector, bool masked) {
  Value score = cap(load(scores.buffer, at(key, vector)));
  auto toI32 = [&](Value index) { return splat(arith::IndexCastOp::create(b, b.getI32Type(), index)); };
  auto ofRows = [&](const Region &region) { return load(region.buffer, atLanes(panel, vector)); };
  Value position = slopes || distances ? toI32(toPosition(add(firstKey, key))) : Value(), distance;
  if (position)
    distance = arith::SubIOp::create(b, position, ofRows(positions));
  if (slopes)
    score = fma(arith::SIToFPOp::create(b, getVector(), distance), ofRows(rowSlopes), score);
  if (distances)
    score = arith::AddFOp::create(b, score, loadBias(ofRows(rowOrigins), plan.biasByPosition ? position : distance));
  if (!masked)
    return score;
  Value own = toI32(add(firstKey, key));
  Value seen = arith::CmpIOp::create(b, arith::CmpIPredicate::slt, own, ofRows(uppers));
  if (plan.left)
    seen = both(seen, arith::CmpIOp::create(b, arith::CmpIPredicate::sge, own, ofRows(lowers)));
  return arith::SelectOp::create(b, seen, score, getLowest());
}

void PagedEmitter::emitProbabilities(Value panel) {
  // The last pair may contain one row behind the last key.
  if (plan.usesDot)
    for (int64_t v = 0; v < vectors; ++v)
      store(getLowest(), scores.buffer, at(to, v));
  SmallVector<Value> before;
  for (int64_t v = 0; v < vectors; ++v)
    before.push_back(load(maxima.buffer, atLanes(panel, v)));
  auto visit = [&](bool masked) {
    return loop(from, to, 1, before, [&](Value key, ValueRange known) {
      SmallVector<Value> found;
      for (int64_t v = 0; v < vectors; ++v) {
        Value score = getScore(panel, key, v, masked);
        // A score that is still the product stays where it is.
        if (!score.getDefiningOp<vector::LoadOp>())
          store(score, scores.buffer, at(key, v));
        found.push_back(larger(known[v], score));
      }
      return found;
    });
  };
  // Rows are in the order of tokens: the first one sees the fewest keys ahead, the last one behind.
  auto numberOf = [&](const Region &region, Value row) { return loadNumber(region.buffer, row); };
  Value masked = isBelow(numberOf(uppers, mul(panel, width)), add(firstKey, to));
  if (plan.left)
    masked = arith::OrIOp::create(
        b, masked, isBelow(add(firstKey, from), numberOf(lowers, add(mul(panel, width), width - 1))));
  SmallVector<Value> found = choose(masked, [&] { return visit(true); }, [&] { return visit(false); });
  SmallVector<Value> guarded, zeros(vectors, getSplat(0));
  for (int64_t v = 0; v < vectors; ++v) {
    store(found[v], maxima.buffer, atLanes(panel, v));
    guarded.push_back(guard(found[v]));
    store(exponentiate(before[v], guarded[v]), scales.buffer, getIndex(v * lanes));
  }
  SmallVector<Value> added = loop(from, to, plan.usesDot ? 2 : 1, zeros, [&](Value key, ValueRange known) {
    SmallVector<Value> shares;
    for (int64_t v = 0; v < vectors; ++v) {
      Value first = exponentiate(load(scores.buffer, at(key, v)), guarded[v]);
      Value sum = arith::AddFOp::create(b, known[v], first);
      if (!plan.usesDot) {
        store(first, scores.buffer, at(key, v));
      } else {
        Value second = exponentiate(load(scores.buffer, at(add(key, 1), v)), guarded[v]);
        sum = arith::AddFOp::create(b, sum, second);
        store(emitPairs(narrow(first), narrow(second)), probabilities.buffer, at(div(key, 2), v));
      }
      shares.push_back(sum);
    }
    return shares;
  });
  for (int64_t v = 0; v < vectors; ++v) {
    Value scale = load(scales.buffer, getIndex(v * lanes));
    store(fma(load(sums.buffer, atLanes(panel, v)), scale, added[v]), sums.buffer, atLanes(panel, v));
  }
}

//===----------------------------------------------------------------------===//
// A unit
//===----------------------------------------------------------------------===//

void PagedEmitter::emitPanel(Value panel) {
  Value first = mul(panel, width), last = add(first, width - 1);
  to = min(numKeys, sub(loadNumber(uppers.buffer, last), firstKey));
  from = getIndex(0);
  if (plan.left) {
    from = max(from, sub(loadNumber(lowers.buffer, first), firstKey));
    if (plan.usesDot)
      from = mul(div(from, 2), 2);
  }
  when(isBelow(from, to), [&] {
    emitScores(panel);
    emitProbabilities(panel);
    emitProducts(panel);
  });
}

void PagedEmitter::emitBlockResult() {
  int64_t columns = plan.valueFeatures, present = std::min(columns, lanes);
  int64_t rowsOfPanel = llvm::alignTo(columns, tileRows);
  Type type = cast<MemRefType>(result.getType()).getElementType();
  loop(getIndex(0), mul(numPanels, vectors), 1, [&](Value part) {
    Value start = add(mul(div(part, vectors), rowsOfPanel * width), mul(rem(part, vectors), lanes));
    Value firstRow = mul(part, lanes);
    Value factor = getResultFactor(load(sums.buffer, firstRow), load(maxima.buffer, firstRow),
                                   sinks ? load(rowSinks.buffer, firstRow) : Value());
    SmallVector<Value> rows;
    for (int64_t i = 0; i < lanes; ++i)
      rows.push_back(mul(add(resultBase, loadNumber(rowsOfQuery.buffer, add(firstRow, i))), columns));
    auto emitChunk = [&](Value column) {
      SmallVector<Value> found;
      for (int64_t j = 0; j < lanes; ++j)
        found.push_back(j < present ? arith::MulFOp::create(
                                          b, load(results.buffer, add(start, mul(add(column, j), width))), factor)
                                          .getResult()
                                    : getSplat(0));
      transpose(found);
      // Lanes that repeat the last row write its values once more.
      for (int64_t i = 0; i < lanes; ++i)
        store(emitCast(b, resize(found[i], present), type), result, add(rows[i], column));
    };
    if (columns <= lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(columns), lanes, [&](Value column) { emitChunk(min(column, columns - lanes)); });
  });
}

void PagedEmitter::emitBlockLogSumExp() {
  loop(getIndex(0), mul(numPanels, width), lanes, [&](Value i) {
    store(getLogSumExp(load(sums.buffer, i), load(maxima.buffer, i)), maxima.buffer, i);
  });
  loop(getIndex(0), numRows, 1, [&](Value i) {
    Value row = add(resultBase, loadNumber(rowsOfQuery.buffer, i));
    memref::StoreOp::create(b, loadScalar(maxima.buffer, i), lse, row);
  });
}

void PagedEmitter::emitBlockUnit() {
  numRows = mul(numTokens, plan.blockHeads);
  numPanels = div(add(numRows, width - 1), width);
  packRows();
  packQueries();
  Value rows = mul(numPanels, width);
  fill(maxima, rows, -std::numeric_limits<double>::infinity());
  fill(sums, rows, 0);
  fill(results, mul(rows, llvm::alignTo(plan.valueFeatures, tileRows)), 0);
  loop(firstOfUnit, lastOfUnit, kBlockKeys, [&](Value key) {
    firstKey = key;
    numKeys = min(sub(lastOfUnit, key), kBlockKeys);
    lookUpKeys(numKeys);
    if (copiesKeys)
      copyRows(keys, plan.features, plan.features, keyBlock);
    if (plan.usesDot)
      packValuePairs();
    else if (copiesValues)
      copyRows(values, plan.valueStride, plan.valueFeatures, valueBlock);
    loop(getIndex(0), numPanels, 1, [&](Value panel) { emitPanel(panel); });
  });
  emitBlockResult();
  if (lse)
    emitBlockLogSumExp();
}

} // namespace meshwright::lower

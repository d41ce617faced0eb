//===- AttentionPanels.cpp - scores with queries as lanes -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionPanels.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

AttentionPanels::AttentionPanels(const AttentionKernel &kernel) : AttentionEmitter(kernel) {
  vectors = plan.blockRows > plan.lanes ? 2 : 1;
  width = vectors * plan.lanes;
  tileRows = processor.numVectorRegisters >= 32 ? 16 / vectors : 8 / vectors;
  featureSteps = plan.usesDot ? plan.features / 2 : plan.features;
  keySteps = plan.usesDot ? plan.blockKeys / 2 : plan.blockKeys;
  isWidened = !plan.usesDot && plan.element != plan.compute;
}

void AttentionPanels::reservePositions() {
  if (plan.isPositional())
    reserve(positions, plan.blockRows, getPositionType());
  if (plan.isPositional() && !plan.isOrdered()) {
    reserve(lowestOfPanel, plan.blockRows / width, getPositionType());
    reserve(highestOfPanel, plan.blockRows / width, getPositionType());
  }
}

void AttentionPanels::reserveKeysAndValues() {
  if (isWidened)
    reserve(keyBlock, plan.blockKeys * plan.features, plan.compute);
  if (isWidened)
    reserve(valueBlock, plan.blockKeys * plan.valueFeatures, plan.compute);
}

void AttentionPanels::reserveBias() {
  // Columns are copied by vectors from the beginning of the window on, so some columns before
  // and behind the block may be copied, too.
  if (biasStrides[2] && biasStrides[3])
    reserve(biasBlock, (2 * plan.lanes + plan.blockKeys) * width, plan.compute);
  if (!biasElements)
    return;
  points.emplace(op, /*queriesAreColumns=*/true);
  biasTerms.resize(points->columnTerms.size());
  for (auto [region, term] : llvm::zip_equal(biasTerms, points->columnTerms))
    reserve(region, plan.blockRows, getRowStorageType(getElementTypeOrSelf(term.first.getType())));
}

void AttentionPanels::reserveDropout() {
  if (op.getDropRows())
    reserve(dropTerms, plan.blockRows, b.getI64Type());
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

Value AttentionPanels::accumulate(Value a, Value c, Value sum) {
  if (!plan.usesDot)
    return fma(a, c, sum);
  auto wide = getVector(2 * plan.lanes, b.getBF16Type());
  return dot(vector::BitCastOp::create(b, wide, a), vector::BitCastOp::create(b, wide, c), sum);
}

Value AttentionPanels::loadPair(Value buffer, Value index) {
  Value pair = vector::BitCastOp::create(b, getVector(1, getPairs()), load(buffer, index, 2));
  return vector::ExtractOp::create(b, pair, 0);
}

Value AttentionPanels::emitPairs(Value lower, Value upper) {
  int64_t size = cast<VectorType>(lower.getType()).getDimSize(0);
  auto type = getVector(size, getPairs());
  auto getBits = [&](Value values) -> Value {
    Value bits = vector::BitCastOp::create(b, getVector(size, b.getI16Type()), values);
    return arith::ExtUIOp::create(b, type, bits);
  };
  auto half = DenseElementsAttr::get(type, b.getI32IntegerAttr(16));
  Value high = arith::ShLIOp::create(b, getBits(upper), arith::ConstantOp::create(b, half));
  return arith::OrIOp::create(b, getBits(lower), high);
}

SmallVector<Value> AttentionPanels::emitTile(int64_t numRows, Value from, Value to, ValueRange init,
                                             function_ref<Value(int64_t, Value)> scalar,
                                             function_ref<Value(int64_t, Value)> vector) {
  return loop(from, to, 1, init, [&](Value k, ValueRange sums) {
    SmallVector<Value> columns, result;
    for (int64_t v = 0; v < vectors; ++v)
      columns.push_back(vector(v, k));
    for (int64_t i = 0; i < numRows; ++i) {
      Value row = splat(scalar(i, k));
      for (int64_t v = 0; v < vectors; ++v)
        result.push_back(accumulate(row, columns[v], sums[i * vectors + v]));
    }
    return result;
  });
}

void AttentionPanels::emitPanelProduct(const PanelProduct &product, Value panel) {
  Value widened = product.widened.buffer;
  loop(from, to, tileRows, [&](Value first) {
    SmallVector<Value> rows;
    for (int64_t i = 0; i < tileRows; ++i) {
      Value row = add(first, i);
      if (isWidened) {
        rows.push_back(mul(min(row, sub(numKeys, getIndex(1))), product.columns));
        continue;
      }
      // Rows behind the last key repeat it. No op reads their scores.
      row = add(firstKey, row);
      if (plan.keys % tileRows || plan.left)
        row = min(row, plan.keys - 1);
      rows.push_back(add(product.base, mul(row, product.columns)));
    }
    SmallVector<Value> init(tileRows * vectors, getSplat(0));
    SmallVector<Value> sums = emitTile(
        tileRows, getIndex(0), getIndex(product.steps), init,
        [&](int64_t i, Value k) -> Value {
          if (plan.usesDot)
            return loadPair(product.source, add(rows[i], mul(k, 2)));
          return loadScalar(isWidened ? widened : product.source, add(rows[i], k));
        },
        [&](int64_t v, Value k) {
          return load(product.panels.buffer, at(panel, product.steps, k, v));
        });
    Value factor = product.factor ? getSplat(*product.factor) : Value();
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v) {
        Value sum = sums[i * vectors + v];
        store(factor ? arith::MulFOp::create(b, sum, factor).getResult() : sum,
              product.target.buffer, atScore(add(first, i), v));
      }
  });
}

void AttentionPanels::emitColumnProduct(const ColumnProduct &product, Value panel,
                                        function_ref<Value(Value, int64_t, Value)> update) {
  int64_t rowsOfPanel = llvm::alignTo(product.columns, tileRows);
  loop(getIndex(0), getIndex(product.columns), tileRows, [&](Value first) {
    SmallVector<Value> columns;
    for (int64_t i = 0; i < tileRows; ++i) {
      Value column = add(first, i);
      if (product.columns % tileRows)
        column = min(column, product.columns - 1);
      columns.push_back(add(product.base, column));
    }
    // Each block is summed separately and then added, which keeps long sums exact.
    SmallVector<Value> init(tileRows * vectors, getSplat(0));
    SmallVector<Value> sums = emitTile(
        tileRows, product.first, product.last, init,
        [&](int64_t i, Value k) {
          return loadScalar(product.source, add(columns[i], mul(k, product.columns)));
        },
        [&](int64_t v, Value k) { return load(product.weights, atScore(k, v)); });
    for (int64_t i = 0; i < tileRows; ++i)
      for (int64_t v = 0; v < vectors; ++v) {
        Value place = at(panel, rowsOfPanel, add(first, i), v);
        store(update(load(product.target.buffer, place), v, sums[i * vectors + v]),
              product.target.buffer, place);
      }
  });
}

void AttentionPanels::emitResult(const Region &panels, int64_t columns, Value target,
                                 const Region *divisors) {
  int64_t present = std::min(columns, plan.lanes);
  int64_t rowsOfPanel = llvm::alignTo(columns, tileRows);
  Value base = mul(unit, plan.rows * columns);
  loop(getIndex(0), mul(numPanels, vectors), 1, [&](Value group) {
    Value panel = div(group, vectors);
    Value start = add(mul(panel, rowsOfPanel * width), mul(rem(group, vectors), plan.lanes));
    Value factor = divisors ? invert(load(divisors->buffer, mul(group, plan.lanes))) : Value();
    if (factor && dropRows)
      factor = arith::MulFOp::create(b, factor, getSplat(getKeptFactor(op)));
    SmallVector<Value> rows;
    for (int64_t i = 0; i < plan.lanes; ++i)
      rows.push_back(add(base, mul(getRow(group, i), columns)));
    auto emitChunk = [&](Value column) {
      SmallVector<Value> vectors;
      for (int64_t j = 0; j < plan.lanes; ++j) {
        if (j >= present) {
          vectors.push_back(getSplat(0));
          continue;
        }
        Value loaded = load(panels.buffer, add(start, mul(add(column, j), width)));
        vectors.push_back(factor ? arith::MulFOp::create(b, loaded, factor).getResult() : loaded);
      }
      transpose(vectors);
      // Lanes that repeat the last row write its values once more.
      for (int64_t i = 0; i < plan.lanes; ++i) {
        Value row = resize(vectors[i], present);
        store(divisors ? narrow(row) : row, target, add(rows[i], column));
      }
    };
    if (columns <= plan.lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(columns), plan.lanes,
         [&](Value column) { emitChunk(min(column, columns - plan.lanes)); });
  });
}

//===----------------------------------------------------------------------===//
// Scores
//===----------------------------------------------------------------------===//

Value AttentionPanels::drop(Value panel, Value row, int64_t vector, Value weight, double factor) {
  if (!dropRows)
    return weight;
  // A step over two keys may read one behind the last key, whose weight is zero.
  Value key = min(add(firstKey, row), plan.keyRows - 1);
  Value terms = load(dropTerms.buffer, mul(getGroup(panel, vector), plan.lanes));
  Value indices = arith::AddIOp::create(b, terms, splat(loadScalar(dropKeys, key)));
  if (factor != 1)
    weight = arith::MulFOp::create(b, weight, getSplat(factor));
  return arith::SelectOp::create(b, isKept(indices), weight, getSplat(0));
}

SmallVector<Value> AttentionPanels::visitScores(Value panel, bool masked, ValueRange inits,
                                                ScoreVisitor visit) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  SmallVector<Value> lower, upper, biases(vectors);
  for (int64_t v = 0; v < vectors; ++v) {
    if (masked && plan.isPositional()) {
      Value position = load(positions.buffer, mul(getGroup(panel, v), plan.lanes));
      auto shifted = [&](int64_t by) -> Value {
        return arith::AddIOp::create(b, position, splat(getPosition(by)));
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
  return loop(from, to, 1, inits, [&](Value row, ValueRange known) {
    Value absolute = add(firstKey, row);
    Value keep;
    if (padding) {
      Value byte = loadScalar(padding, add(mul(batchIndex, plan.keyRows), absolute));
      keep = fromStorage(b, byte, b.getI1Type());
    }
    Value positionOfKey;
    Value rowBias;
    if (bias && biasStrides[3] && !biasStrides[2])
      rowBias = splat(widen(loadScalar(bias, add(biasBase, absolute))));
    SmallVector<Value> found;
    for (int64_t v = 0; v < vectors; ++v) {
      Value capped = cap(load(scores.buffer, atScore(row, v)));
      Value score = capped;
      if (op.getBias()) {
        Value term = biases[v] ? biases[v]
                     : rowBias ? rowBias
                               : load(biasBlock.buffer, at(add(row, plan.lanes), v));
        score = arith::AddFOp::create(b, score, term);
      }
      Value seen;
      if (masked && plan.isPositional()) {
        if (!positionOfKey) {
          Value position = plan.hasPositions ? getKeyPosition(absolute) : toPosition(absolute);
          positionOfKey = splat(position);
          if (plan.hasPositions)
            keep = both(keep, isKey(position));
        }
        auto compare = [&](arith::CmpIPredicate predicate, Value limit) {
          seen = both(seen, arith::CmpIOp::create(b, predicate, positionOfKey, limit));
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
      Value next = visit(row, v, capped, score, inits.empty() ? Value() : known[v]);
      if (next)
        found.push_back(next);
    }
    return found;
  });
}

SmallVector<Value> AttentionPanels::visitMasked(Value panel, ValueRange inits,
                                                ScoreVisitor visit) {
  if (!plan.isPositional())
    return visitScores(panel, /*masked=*/bool(padding), inits, visit);
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
  return choose(
      masked, [&] { return visitScores(panel, true, inits, visit); },
      [&] { return visitScores(panel, false, inits, visit); });
}

} // namespace meshwright::lower

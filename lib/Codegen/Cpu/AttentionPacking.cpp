//===- AttentionPacking.cpp - the operands of a block of attention --------===//
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

void AttentionPanels::emitTransposed(Value source, int64_t columns, Value first, Value last,
                                     function_ref<Value(int64_t)> row, Value target,
                                     function_ref<Value(Value)> indexOf, bool asPairs) {
  int64_t lanes = plan.lanes;
  SmallVector<Value> rows;
  for (int64_t i = 0; i < lanes; ++i)
    rows.push_back(row(i));
  // The last vector of a row overlaps the one before. A row shorter than a vector has only one.
  int64_t present = std::min(columns, lanes);
  auto emitChunk = [&](Value column) {
    SmallVector<Value> vectors;
    for (int64_t i = 0; i < lanes; ++i) {
      if (asPairs) {
        Value index = add(rows[i], mul(column, 2));
        Value pairs = vector::BitCastOp::create(b, getVector(present, getPairs()),
                                                load(source, index, 2 * present));
        vectors.push_back(resize(pairs, lanes));
      } else {
        vectors.push_back(resize(widen(load(source, add(rows[i], column), present)), lanes));
      }
    }
    transpose(vectors);
    for (int64_t j = 0; j < present; ++j)
      store(vectors[j], target, indexOf(add(column, j)));
  };
  if (columns <= lanes)
    return emitChunk(getIndex(0));
  loop(first, last, lanes, [&](Value column) { emitChunk(min(column, columns - lanes)); });
}

void AttentionPanels::packRows(Value source, int64_t columns, int64_t steps,
                               const Region &panels) {
  Value base = mul(unit, plan.rows * columns);
  loop(getIndex(0), mul(numPanels, vectors), 1, [&](Value group) {
    Value panel = div(group, vectors);
    Value start = add(mul(panel, steps * width), mul(rem(group, vectors), plan.lanes));
    emitTransposed(
        source, steps, getIndex(0), getIndex(steps),
        [&](int64_t lane) { return add(base, mul(getRow(group, lane), columns)); },
        panels.buffer, [&](Value column) { return add(start, mul(column, width)); },
        plan.usesDot);
  });
}

/// Packs the position of each row among the keys, which is its query.
void AttentionPanels::packPositions() {
  loop(getIndex(0), min(sub(getIndex(plan.rows), firstRow), plan.blockRows), 1, [&](Value i) {
    Value query = add(firstRow, i);
    if (plan.headsPerUnit > 1)
      query = rem(query, plan.queries);
    Value position = plan.hasPositions ? getQueryPosition(query) : toPosition(query);
    memref::StoreOp::create(b, position, positions.buffer, i);
  });
  // Lanes that repeat the last row.
  if (plan.rows % plan.blockRows)
    loop(sub(getIndex(plan.rows), firstRow), getIndex(plan.blockRows), 1, [&](Value i) {
      Value last = plan.hasPositions ? getQueryPosition(getIndex(plan.queries - 1))
                                     : getPosition(plan.queries - 1);
      memref::StoreOp::create(b, last, positions.buffer, i);
    });
  if (plan.isOrdered())
    return;
  queryBounds = getBounds(positions.buffer, getIndex(0), mul(numPanels, width));
  loop(getIndex(0), numPanels, 1, [&](Value panel) {
    Bounds bounds = getBounds(positions.buffer, mul(panel, width), getIndex(width));
    memref::StoreOp::create(b, bounds.lowest, lowestOfPanel.buffer, panel);
    memref::StoreOp::create(b, bounds.highest, highestOfPanel.buffer, panel);
  });
}

void AttentionPanels::packDropRows() {
  if (!dropRows)
    return;
  Value base = mul(unit, plan.rows);
  loop(getIndex(0), mul(numPanels, width), 1, [&](Value i) {
    Value row = add(base, min(add(firstRow, i), plan.rows - 1));
    memref::StoreOp::create(b, loadScalar(dropRows, row), dropTerms.buffer, i);
  });
}

AttentionEmitter::Bounds AttentionPanels::getKeyBounds() {
  if (plan.hasPositions)
    return getBoundsOfKeys(firstKey, numKeys);
  Value lowest = toPosition(firstKey);
  return {lowest, lowest, toPosition(sub(add(firstKey, numKeys), getIndex(1)))};
}

AttentionEmitter::Bounds AttentionPanels::getPanelBounds(Value panel) {
  Value lowest = loadScalar(lowestOfPanel.buffer, panel);
  return {lowest, lowest, loadScalar(highestOfPanel.buffer, panel)};
}

void AttentionPanels::widenKeysAndValues() {
  if (!isWidened)
    return;
  auto widenBlock = [&](Value from, Value base, int64_t columns, Region &block) {
    Value count = mul(numKeys, columns);
    Value whole = mul(div(count, plan.lanes), plan.lanes);
    Value start = add(base, mul(firstKey, columns));
    loop(getIndex(0), whole, plan.lanes,
         [&](Value i) { store(widen(load(from, add(start, i))), block.buffer, i); });
    loop(whole, count, 1, [&](Value i) {
      memref::StoreOp::create(b, widen(loadScalar(from, add(start, i))), block.buffer, i);
    });
  };
  widenBlock(key, keyBase, plan.features, keyBlock);
  widenBlock(value, valueBase, plan.valueFeatures, valueBlock);
}

void AttentionPanels::packPairs(Value source, int64_t columns, Value base, Value count,
                                const Region &pairs) {
  int64_t present = std::min(columns, plan.lanes);
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(getVector(present, plan.element)));
  loop(getIndex(0), count, 2, [&](Value row) {
    Value next = add(row, 1), last = sub(count, getIndex(1));
    Value lower = add(base, mul(row, columns)), upper = add(base, mul(min(next, last), columns));
    Value isRow = isBelow(row, last), target = mul(div(row, 2), columns);
    auto emitChunk = [&](Value column) {
      Value high =
          arith::SelectOp::create(b, isRow, load(source, add(upper, column), present), zeros);
      store(emitPairs(load(source, add(lower, column), present), high), pairs.buffer,
            add(target, column));
    };
    if (columns <= plan.lanes)
      return emitChunk(getIndex(0));
    loop(getIndex(0), getIndex(columns), plan.lanes,
         [&](Value column) { emitChunk(min(column, columns - plan.lanes)); });
  });
}

void AttentionPanels::packBiasTerms() {
  Value head = rem(unit, plan.queryHeads);
  loop(getIndex(0), mul(numPanels, width), 1, [&](Value i) {
    // Rows behind the last row repeat it.
    Value query = min(add(firstRow, i), plan.queries - 1);
    biasElements->startRow(points->space, {batchIndex, head, getIndex(0)});
    biasElements->startColumns(0, points->space.end, query, /*width=*/1, nullptr);
    for (auto [region, term] : llvm::zip_equal(biasTerms, points->columnTerms))
      store(toRowStorage(b, biasElements->emitVector(term.first, term.second)), region.buffer, i);
  });
}

void AttentionPanels::computeBias(Value panel) {
  Value head = rem(unit, plan.queryHeads);
  SmallVector<SmallVector<Value>> terms(vectors);
  for (int64_t v = 0; v < vectors; ++v)
    for (auto [region, term] : llvm::zip_equal(biasTerms, points->columnTerms))
      terms[v].push_back(
          fromRowStorage(b, load(region.buffer, mul(getGroup(panel, v), plan.lanes), plan.lanes),
                         getElementTypeOrSelf(term.first.getType())));
  loop(from, to, 1, [&](Value row) {
    biasElements->startRow(points->space, {batchIndex, head, add(firstKey, row)});
    for (int64_t v = 0; v < vectors; ++v) {
      // Elements of the columns are only terms, which are set below.
      biasElements->startColumns(0, points->space.end, getIndex(0), plan.lanes, nullptr);
      for (auto [value, term] : llvm::zip_equal(terms[v], points->columnTerms))
        biasElements->setElement(term.first, term.second, value);
      Value bias = biasElements->emitVector(op.getBias(), points->access);
      store(widen(bias), biasBlock.buffer, at(add(row, plan.lanes), v));
    }
  });
}

Value AttentionPanels::isOpen() {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  auto type = getVector(plan.lanes, b.getI1Type());
  Value none = arith::ConstantOp::create(b, b.getZeroAttr(type));
  Value open = loop(from, to, 1, none, [&](Value row, ValueRange known) {
                 SmallVector<Value> found{known[0]};
                 for (int64_t v = 0; v < vectors; ++v) {
                   Value bias = load(biasBlock.buffer, at(add(row, plan.lanes), v));
                   Value isAbove =
                       arith::CmpFOp::create(b, arith::CmpFPredicate::UNE, bias, lowest);
                   found[0] = arith::OrIOp::create(b, found[0], isAbove);
                 }
                 return found;
               }).front();
  return vector::ReductionOp::create(b, vector::CombiningKind::OR, open);
}

void AttentionPanels::packBias(Value panel) {
  if (biasElements)
    return computeBias(panel);
  Value base =
      add(mul(batchIndex, biasStrides[0]), mul(rem(unit, plan.queryHeads), biasStrides[1]));
  // Column j of the block is at `lanes` + j.
  Value behind = sub(getIndex(plan.lanes), firstKey);
  for (int64_t v = 0; v < vectors; ++v)
    emitTransposed(
        bias, plan.keyRows, add(firstKey, from), add(firstKey, to),
        [&](int64_t lane) {
          return add(base, mul(getRow(getGroup(panel, v), lane), biasStrides[2]));
        },
        biasBlock.buffer, [&](Value column) { return at(add(column, behind), v); }, false);
}

} // namespace meshwright::lower

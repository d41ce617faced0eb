//===- AttentionGradientScores.cpp - gradients of attention's scores ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionGradient.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

void AttentionGradient::emitSoftmax(Value panel) {
  SmallVector<Value> shiftOf, restOf, deltaOf;
  for (int64_t v = 0; v < vectors; ++v) {
    Value place = mul(getGroup(panel, v), plan.lanes);
    shiftOf.push_back(load(shifts.buffer, place));
    restOf.push_back(rests.buffer ? load(rests.buffer, place) : Value());
    deltaOf.push_back(load(deltas.buffer, place));
  }
  SmallVector<Value> zeros(balances ? vectors : 0, getSplat(0));
  SmallVector<Value> sums = visitMasked(panel, zeros, [&](Value row, int64_t v, Value capped,
                                                          Value score, Value known) -> Value {
    Value exponent = arith::SubFOp::create(b, score, shiftOf[v]);
    if (getUnit() != M_LOG2E)
      exponent = arith::MulFOp::create(b, exponent, getSplat(M_LOG2E));
    if (restOf[v])
      exponent = arith::SubFOp::create(b, exponent, restOf[v]);
    // No weight is above 1, for any log-sum-exp in padding.
    Value isAbove = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, exponent, getSplat(0));
    exponent = arith::SelectOp::create(b, isAbove, getSplat(0), exponent);
    Value weight = exp2(exponent), slope;
    Value difference = drop(panel, row, v, load(gradients.buffer, atScore(row, v)),
                            getKeptFactor(op));
    difference = arith::SubFOp::create(b, difference, deltaOf[v]);
    if (auto limit = op.getSoftCap()) {
      // The derivative of c tanh(x / c).
      slope = arith::MulFOp::create(b, capped,
                                    getSplat(1 / (limit->convertToDouble() * getUnit())));
      slope = arith::SubFOp::create(b, getSplat(1), arith::MulFOp::create(b, slope, slope));
    }
    if (!balances) {
      storeGradients(row, v, weight, drop(panel, row, v, weight, getKeptFactor(op)), difference,
                     slope);
      return Value();
    }
    // A hidden key may have any cotangent.
    if (!hasAllKeys()) {
      Value lowest = getSplat(-std::numeric_limits<double>::infinity());
      Value isHidden = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, score, lowest);
      difference = arith::SelectOp::create(b, isHidden, getSplat(0), difference);
    }
    Value sum = fma(weight, difference, known);
    // A dropped weight is stored as a negative number.
    if (dropRows)
      weight = arith::SubFOp::create(b, drop(panel, row, v, weight, 2), weight);
    store(weight, scores.buffer, atScore(row, v));
    store(difference, gradients.buffer, atScore(row, v));
    if (slope)
      store(slope, slopes.buffer, atScore(row, v));
    return sum;
  });
  for (auto [v, sum] : llvm::enumerate(sums))
    addToRows(corrections, panel, v, sum);
}

void AttentionGradient::addToRows(const Region &region, Value panel, int64_t vector, Value sum) {
  Value place = mul(getGroup(panel, vector), plan.lanes);
  store(arith::AddFOp::create(b, load(region.buffer, place), sum), region.buffer, place);
}

void AttentionGradient::measureRows(Value panel) {
  SmallVector<Value> before(2 * vectors, getSplat(0));
  SmallVector<Value> found = loop(from, to, 1, before, [&](Value row, ValueRange known) {
    SmallVector<Value> next;
    for (int64_t v = 0; v < vectors; ++v) {
      Value weight = load(scores.buffer, atScore(row, v));
      if (dropRows)
        weight = math::AbsFOp::create(b, weight);
      next.push_back(arith::AddFOp::create(b, known[2 * v], weight));
      Value size = math::AbsFOp::create(b, load(gradients.buffer, atScore(row, v)));
      next.push_back(larger(known[2 * v + 1], size));
    }
    return next;
  });
  for (int64_t v = 0; v < vectors; ++v) {
    addToRows(totals, panel, v, found[2 * v]);
    Value place = mul(getGroup(panel, v), plan.lanes);
    store(larger(load(largest.buffer, place), found[2 * v + 1]), largest.buffer, place);
  }
}

/// Delta and the sum of p dp are two estimates of one number, of which the second one has the errors
/// of the products that the gradients are differences of. If the keys may be a part of all keys,
/// or the log-sum-exp may have a cotangent, the second one counts only for rows with no weight
/// elsewhere, and only if both agree up to rounding.
void AttentionGradient::emitCorrections() {
  if (hasAllKeys())
    return;
  double epsilon = std::ldexp(1.0, plan.compute.isF64() ? -52 : -23);
  Value limit = getSplat(4 * epsilon * std::sqrt(double(plan.valueFeatures)));
  loop(getIndex(0), mul(numPanels, width), plan.lanes, [&](Value i) {
    Value sum = load(corrections.buffer, i);
    Value size = math::AbsFOp::create(b, load(deltas.buffer, i));
    size = arith::AddFOp::create(b, size, load(largest.buffer, i));
    Value agrees =
        arith::CmpFOp::create(b, arith::CmpFPredicate::OLE, math::AbsFOp::create(b, sum),
                              arith::MulFOp::create(b, size, limit));
    Value isWhole = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, load(totals.buffer, i),
                                          getSplat(1 - epsilon));
    store(arith::SelectOp::create(b, both(agrees, isWhole), sum, getSplat(0)), corrections.buffer,
          i);
  });
}

void AttentionGradient::emitBalancedGradients(Value panel) {
  SmallVector<Value> corrected;
  for (int64_t v = 0; v < vectors; ++v)
    corrected.push_back(load(corrections.buffer, mul(getGroup(panel, v), plan.lanes)));
  loop(from, to, 1, [&](Value row) {
    for (int64_t v = 0; v < vectors; ++v) {
      Value place = atScore(row, v);
      Value weight = load(scores.buffer, place), kept = weight;
      if (dropRows) {
        kept = arith::SelectOp::create(
            b, arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, weight, getSplat(0)),
            arith::MulFOp::create(b, weight, getSplat(getKeptFactor(op))), getSplat(0));
        weight = math::AbsFOp::create(b, weight);
      }
      Value difference =
          arith::SubFOp::create(b, load(gradients.buffer, place), corrected[v]);
      storeGradients(row, v, weight, kept, difference,
                     slopes.buffer ? load(slopes.buffer, place) : Value());
    }
  });
}

void AttentionGradient::storeGradients(Value row, int64_t vector, Value weight, Value kept,
                                       Value difference, Value slope) {
  Value gradient = arith::MulFOp::create(b, weight, difference);
  if (biasGrad)
    store(gradient, biasGradients.buffer, atBias(row, vector));
  if (slope)
    gradient = arith::MulFOp::create(b, gradient, slope);
  Value scale = getSplat(op.getScale().convertToDouble());
  storeWeights(row, vector, kept, arith::MulFOp::create(b, gradient, scale));
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
    return loadScalar(biasGradients.buffer, add(atBias(row, 0), i));
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

void AttentionGradient::startPanel(Value panel) {
  rowsBase = mul(panel, scoreRows * width);
  scoresBase = plan.usesDot ? Value() : rowsBase;
  if (balances)
    scoresBase = add(blockBase, rowsBase);
}

void AttentionGradient::emitWeights(Value panel) {
  startPanel(panel);
  auto setCount = [&](Value count) {
    memref::StoreOp::create(b, arith::IndexCastOp::create(b, b.getI64Type(), count), counts.buffer,
                            add(countsBase, panel));
  };
  auto emitAll = [&] {
    setCount(min(sub(numRows, mul(panel, width)), width));
    emitScores(panel);
    emitPanelProduct({value, valueBase, plan.valueFeatures, valueBlock, outPanels, outSteps,
                      gradients, std::nullopt},
                     panel);
    emitSoftmax(panel);
    if (!balances)
      emitPanelGradients(panel);
    else if (!hasAllKeys())
      measureRows(panel);
  };
  if (!biasBlock.buffer)
    return emitAll();
  packBias(panel);
  when(isOpen(), emitAll, [&] { setCount(getIndex(0)); });
}

void AttentionGradient::emitPanelGradients(Value panel) {
  if (biasGrad)
    addToBias(panel, getCount(panel));
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
  emitColumnProduct({keys, base, plan.features, gradients.buffer, queryGradients, from, to}, panel,
                    addTo);
}

} // namespace meshwright::lower

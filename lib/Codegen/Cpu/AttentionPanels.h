//===- AttentionPanels.h - scores with queries as lanes ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Attention with a query in each lane. All products are computed transposed: scores are keys
// times queries, and results are features times queries.
//
// - Kernels read keys and values unpacked, element by element, and broadcast each element.
//   That costs no more than loading a vector.
// - Maxima and sums over keys need no exchange of lanes.
// - No number of keys or features leaves lanes empty.
// - Only the queries of a block and its result are transposed.
//
// A block of queries is cut into panels of a few vectors. All panels read a block of keys
// before the next block, so keys are fetched once. Only the scores of a few panels and one block
// of keys exist at a time.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPANELS_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPANELS_H

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"

namespace meshwright::lower {

/// The parts that attention and its backward pass share for blocks of queries. AttentionPacking.cpp has
/// the members that copy queries, keys, values and biases to the workspace.
class AttentionPanels : public AttentionEmitter {
protected:
  explicit AttentionPanels(const AttentionKernel &kernel);

  // Reserve parts of the workspace.
  void reservePositions();
  void reserveKeysAndValues();
  void reserveBias();
  void reserveDropout();

  /// Copies the columns first .. last of `lanes` rows, and transposes them: column j becomes a
  /// vector at `indexOf(j)`. Row i begins at `row(i)` in `from`.
  void emitTransposed(Value from, int64_t columns, Value first, Value last,
                      function_ref<Value(int64_t)> row, Value to,
                      function_ref<Value(Value)> indexOf, bool asPairs);
  /// Packs the present rows of a tensor like the queries as panels of columns, which are `steps`
  /// pairs or elements of a row of `columns` elements.
  void packRows(Value source, int64_t columns, int64_t steps, const Region &panels);
  void packPositions();
  /// Packs the terms of indices of weights that vary with the query, for the block of rows.
  void packDropRows();
  /// Widens the block of keys and values, if arithmetic has another type.
  void widenKeysAndValues();
  /// Packs the pairs of consecutive rows: a row of pairs has `columns` of them. `count` rows of a
  /// tensor begin at element `base`; behind the last row are zeros.
  void packPairs(Value source, int64_t columns, Value base, Value count, const Region &pairs);
  /// Packs the terms of the bias that vary with the query, for the block of rows.
  void packBiasTerms();
  void packBias(Value panel);
  void computeBias(Value panel);
  /// Emits a test that is true unless the bias hides all keys of the block from the panel.
  Value isOpen();
  /// If rows are not in order: the positions of the block of keys, and of the queries of a
  /// panel.
  Bounds getKeyBounds();
  Bounds getPanelBounds(Value panel);

  /// a c + sum, for elements or for pairs of them.
  Value accumulate(Value a, Value c, Value sum);
  /// The pair of two consecutive elements.
  Value loadPair(Value buffer, Value index);
  /// Two vectors of bf16 as the lower and the upper halves of pairs.
  Value emitPairs(Value lower, Value upper);
  /// Emits a tile of `numRows` scalars times the vectors of a panel:
  /// acc[i][v] += scalar(i, k) * vector(v, k), for k in from .. to.
  SmallVector<Value> emitTile(int64_t numRows, Value from, Value to, ValueRange init,
                              function_ref<Value(int64_t, Value)> scalar,
                              function_ref<Value(int64_t, Value)> vector);
  /// The product of rows of keys or of values with a panel, times a factor if there is one.
  struct PanelProduct {
    /// Rows of `columns` elements from `base` on, and their widened copies.
    Value source, base;
    int64_t columns;
    const Region &widened;
    /// The panels, of `steps` rows.
    const Region &panels;
    int64_t steps;
    const Region &target;
    std::optional<double> factor;
  };
  void emitPanelProduct(const PanelProduct &product, Value panel);
  /// Scores of a panel.
  void emitScores(Value panel) {
    emitPanelProduct({key, keyBase, plan.features, keyBlock, queryPanels, featureSteps, scores,
                      getFactor()},
                     panel);
  }
  /// Adds the products of the columns of keys or values with weights, which have a row for each
  /// key, to panels of results: result = update(result, vector, product).
  struct ColumnProduct {
    Value source, base;
    int64_t columns;
    Value weights;
    const Region &target;
    /// The steps over keys that are summed.
    Value first, last;
  };
  void emitColumnProduct(const ColumnProduct &product, Value panel,
                         function_ref<Value(Value, int64_t, Value)> update);
  /// Transposes panels of results to rows of `columns` elements, and divides them by sums if
  /// there are any.
  void emitResult(const Region &panels, int64_t columns, Value target, const Region *divisors);

  /// Masks, caps and biases the panel's scores. `visit` gets a key, a vector, its capped and its
  /// masked score and the vector's value so far, and returns the next one.
  using ScoreVisitor = function_ref<Value(Value, int64_t, Value, Value, Value)>;
  SmallVector<Value> visitScores(Value panel, bool masked, ValueRange inits, ScoreVisitor visit);
  /// The same. Compares positions only if some query of the panel does not see all of its keys.
  SmallVector<Value> visitMasked(Value panel, ValueRange inits, ScoreVisitor visit);

  /// The weight of the block's key `row`, for a vector of a panel's queries, times a factor; zero
  /// where it is dropped.
  Value drop(Value panel, Value row, int64_t vector, Value weight, double factor);

  /// The row in its unit of lane `lane` of a group of the block's rows. Lanes behind the last
  /// row repeat it.
  Value getRow(Value group, int64_t lane) {
    Value row = add(add(firstRow, mul(group, plan.lanes)), lane);
    return plan.rows % plan.blockRows ? min(row, plan.rows - 1) : row;
  }
  /// The first element of the block's keys and values.
  Value getFirstKey() { return add(keyBase, mul(firstKey, plan.features)); }
  Value getFirstValue() { return add(valueBase, mul(firstKey, plan.valueFeatures)); }
  Value getGroup(Value panel, int64_t vector) { return add(mul(panel, vectors), vector); }
  /// The index of vector `vector` of a panel at `row`, in regions with a vector for each row.
  Value at(Value row, int64_t vector) { return add(mul(row, width), vector * plan.lanes); }
  Value at(Value panel, int64_t rowsOfPanel, Value row, int64_t vector) {
    return at(add(mul(panel, rowsOfPanel), row), vector);
  }
  /// The same in regions of scores.
  Value atScore(Value row, int64_t vector) {
    return scoresBase ? add(scoresBase, at(row, vector)) : at(row, vector);
  }
  Type getPairs() { return b.getI32Type(); }

  /// Vectors and lanes of a panel, and scalars of a tile.
  int64_t vectors, width, tileRows;
  /// Steps of the sums over features and over the keys of a block.
  int64_t featureSteps, keySteps;
  bool isWidened;

  Region queryPanels, scores, positions;
  Region lowestOfPanel, highestOfPanel;
  Region keyBlock, valueBlock, biasBlock, dropTerms;
  /// For a computed bias: queries are columns, and each term that varies with them has a
  /// region.
  std::optional<BiasPoints> points;
  SmallVector<Region, 4> biasTerms;

  // The present block of rows.
  Value firstRow, numRows, numPanels, keyBase, valueBase, unit;
  Bounds queryBounds;
  // The present block of keys: the first key, the number of keys, and the range that the
  // panel reads.
  Value firstKey, numKeys, from, to;
  Bounds keyBounds;
  /// Where the scores of the present panel begin; null for the beginning of the region.
  Value scoresBase;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONPANELS_H

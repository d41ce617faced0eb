//===- AttentionBlocks.h - attention with queries as lanes ------*- C++ -*-===//
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
// before the next block, so keys are fetched once. Only the scores of one panel and one block
// of keys exist at a time.
//
// An item (`emitItem`) is a block of queries. It packs the queries, and for each block of keys
// that any of them sees (`emitRows`) it packs keys, values and biases, and updates each panel
// (`emitPanel`): scores, maxima, probabilities, products. `emitResult` divides by the sums.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"

namespace meshwright::lower {

/// Emits attention for blocks of queries. AttentionPacking.cpp has the members that copy
/// queries, keys, values and biases to the workspace.
class AttentionBlocks final : public AttentionEmitter {
public:
  explicit AttentionBlocks(const AttentionKernel &kernel);

private:
  void emitItem(Value item) override;

  /// Copies the columns first .. last of `lanes` rows, and transposes them: column j becomes a
  /// vector at place(j). Row i begins at `row(i)` in `from`.
  void emitTransposed(Value from, int64_t columns, Value first, Value last,
                      function_ref<Value(int64_t)> row, Value to, function_ref<Value(Value)> place,
                      bool asPairs);
  void packQueries();
  void packPositions();
  void packKeysAndValues();
  /// Packs the terms of the bias that vary with the query, for the block of rows.
  void packBiasTerms();
  void packBias(Value panel);
  void computeBias(Value panel);
  /// Emits a test that is true unless the bias hides all keys of the block from the panel.
  Value isOpen();
  void emitPanel(Value panel);
  /// If rows are not in order: the positions of the block of keys, and of the queries of a
  /// panel.
  Bounds getKeyBounds();
  Bounds getPanelBounds(Value panel);
  void emitScores(Value panel);
  /// Masks, caps and biases the panel's scores; returns their maxima.
  SmallVector<Value> emitMaxima(Value panel, bool masked, ValueRange before);
  void emitProbabilities(Value panel);
  void emitProducts(Value panel);
  void emitResult();
  void emitLogSumExp();
  /// Emits the results of rows that see no key.
  void emitNothing();
  /// Emits the results of a block of rows, which see no keys outside of first .. last.
  void emitRows(Value first, Value last);

  /// Emits a tile of `numRows` scalars times the vectors of a panel:
  /// acc[i][v] += scalar(i, k) * vector(v, k), for k in from .. to.
  SmallVector<Value> emitTile(int64_t numRows, Value from, Value to, ValueRange init,
                              function_ref<Value(int64_t, Value)> scalar,
                              function_ref<Value(int64_t, Value)> vector);

  /// The row in its unit of lane `lane` of a group of the block's rows. Lanes behind the last
  /// row repeat it.
  Value getRow(Value group, int64_t lane) {
    Value row = add(add(firstRow, mul(group, plan.lanes)), lane);
    return plan.rows % plan.blockRows ? min(row, plan.rows - 1) : row;
  }
  Value getGroup(Value panel, int64_t vector) { return add(mul(panel, vectors), vector); }
  /// The index of vector `vector` of a panel at `row`, in regions with a vector for each row.
  Value at(Value row, int64_t vector) { return add(mul(row, width), vector * plan.lanes); }
  Value at(Value panel, int64_t rowsOfPanel, Value row, int64_t vector) {
    return at(add(mul(panel, rowsOfPanel), row), vector);
  }
  Type getPairs() { return b.getI32Type(); }

  /// Vectors and lanes of a panel, and scalars of a tile.
  int64_t vectors, width, tileRows;
  /// Steps of the sums over features and over the keys of a block.
  int64_t featureSteps, keySteps;
  bool isWidened;

  Region queryPanels, scores, probabilities, results, maxima, sums, scales, positions;
  Region lowestOfPanel, highestOfPanel;
  Region keyBlock, valueBlock, biasBlock;
  /// For a computed bias: queries are columns, and each term that varies with them has a
  /// region.
  std::optional<BiasPoints> points;
  SmallVector<Region, 4> biasTerms;

  // The present item.
  Value firstRow, numRows, numPanels, keyBase, valueBase, unit;
  Bounds queryBounds;
  // The present block of keys: the first key, the number of keys, and the range that the
  // panel reads.
  Value firstKey, numKeys, from, to;
  Bounds keyBounds;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H

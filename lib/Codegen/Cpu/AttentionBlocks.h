//===- AttentionBlocks.h - attention with queries as lanes ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All products are computed transposed, a query in each lane: scores are keys
// times queries, results features times queries. So keys and values are read as
// they lie, element by element, and broadcast, which costs no more than loading
// a vector; maxima and sums over keys need no exchange of lanes; and no number
// of keys or features leaves lanes empty. Only the queries of a block and its
// result are transposed.
//
// A block of queries is cut into panels of a few vectors. Its keys come in
// blocks that all panels read, so that they are fetched once. A panel's scores
// against a block of keys are all that ever exists of the scores.
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

  /// Copies `count` columns of `lanes` rows to where each column is a vector of
  /// lanes: column j to place(j). `row(i)` is where row i begins in `from`.
  void emitTransposed(Value from, int64_t columns, Value first, Value last,
                      function_ref<Value(int64_t)> row, Value to, function_ref<Value(Value)> place,
                      bool asPairs);
  void packQueries();
  void packPositions();
  void packKeysAndValues();
  /// What of the bias varies with the query, for the block of rows.
  void packBiasTerms();
  void packBias(Value panel);
  void computeBias(Value panel);
  /// Whether the bias hides less than all keys of the block from the panel.
  Value isOpen();
  void emitPanel(Value panel);
  /// Where rows are not in order: the places of the block of keys, and those of the
  /// queries of a panel.
  Bounds getKeyBounds();
  Bounds getPanelBounds(Value panel);
  void emitScores(Value panel);
  /// Masks, caps and biases the panel's scores; returns their maxima.
  SmallVector<Value> emitMaxima(Value panel, bool masked, ValueRange before);
  void emitProbabilities(Value panel);
  void emitProducts(Value panel);
  void emitResult();
  void emitLogSumExp();
  /// The results of rows that see no key.
  void emitNothing();
  /// Those of a block of rows, given the keys between which all lie that any sees.
  void emitRows(Value first, Value last);

  /// A tile of `numRows` scalars by the vectors of a panel:
  /// acc[i][v] += scalar(i, k) * vector(v, k), for k in from .. to.
  SmallVector<Value> emitTile(int64_t numRows, Value from, Value to, ValueRange init,
                              function_ref<Value(int64_t, Value)> scalar,
                              function_ref<Value(int64_t, Value)> vector);

  /// Row `lane` of group `group` of the block's rows, in its unit; rows behind
  /// the last are that one again.
  Value getRow(Value group, int64_t lane) {
    Value row = add(add(firstRow, mul(group, plan.lanes)), lane);
    return plan.rows % plan.blockRows ? min(row, plan.rows - 1) : row;
  }
  Value getGroup(Value panel, int64_t vector) { return add(mul(panel, vectors), vector); }
  /// Where vector `vector` of a panel lies at `row`, in regions with a vector
  /// for each row.
  Value at(Value row, int64_t vector) { return add(mul(row, width), vector * plan.lanes); }
  Value at(Value panel, int64_t rowsOfPanel, Value row, int64_t vector) {
    return at(add(mul(panel, rowsOfPanel), row), vector);
  }
  Type getPairs() { return b.getI32Type(); }

  /// Vectors of a panel, its lanes; scalars of a tile.
  int64_t vectors, width, tileRows;
  /// Steps that the sum over features and over the keys of a block have.
  int64_t featureSteps, keySteps;
  bool isWidened;

  Region queryPanels, scores, probabilities, results, maxima, sums, scales, positions;
  Region lowestOfPanel, highestOfPanel;
  Region keyBlock, valueBlock, biasBlock;
  /// Where the bias is computed: queries are columns, and there is a region for each
  /// term that varies with them.
  std::optional<BiasPoints> points;
  SmallVector<Region, 4> biasTerms;

  // Of the item.
  Value firstRow, numRows, numPanels, keyBase, valueBase, unit, batchIndex;
  Bounds queryBounds;
  // Of the block of keys: the first, how many, and those that the panel reads.
  Value firstKey, numKeys, from, to;
  Bounds keyBounds;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H

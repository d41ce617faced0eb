//===- AttentionGradient.h - the backward pass of attention -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The kernel of nn.attention_grad. It computes the scores again, block by block, with queries as
// lanes as the forward kernel does (AttentionPanels.h).
//
// An item (`emitItem`) is all rows that add to the same gradients of keys, values and bias: the
// query heads of a key head, or more heads and rows of the batch if the bias broadcasts over
// them. So one thread adds to each element, always in the same order, and the results of two runs
// have the same bits. For each block of rows (`emitRows`) and each block of keys that any of them
// sees (`emitBlock`):
//
// 1. `emitWeights` computes a panel's scores and their cotangents, and turns scores into weights p.
// 2. `emitPanelGradients` turns cotangents into gradients ds, and adds to the gradients of the
//    queries, which stay in the workspace. Where instructions multiply pairs of bf16, p and ds
//    become bf16 here (`storeWeights`).
// 3. `emitKeyGradients` adds ds^T q and p^T do to the gradients of keys and values, which are in
//    memory. Features are lanes.
//
// Where the kernel balances delta, step 1 is a pass of its own over all keys of the rows, whose
// weights and cotangents stay in the workspace. It also sums p (dp - delta), the error of delta
// against the kernel's own products, which the gradients then leave out (`emitCorrections`). A
// weight near 1 would multiply that error, where the exact gradient is near 0.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONGRADIENT_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONGRADIENT_H

#include "meshwright/lib/Codegen/Cpu/AttentionPanels.h"

namespace meshwright::lower {

/// Emits the backward pass.
class AttentionGradient final : public AttentionPanels {
public:
  explicit AttentionGradient(const AttentionKernel &kernel);

  int64_t getItems() const override { return batchItems * headItems; }

private:
  void emitItem(Value item) override;
  /// Emits the gradients that a key head of a row of the batch adds to.
  void emitKeyHead(Value batchRow, Value keyHead);
  /// Emits what the present block of rows adds.
  void emitRows();
  /// Emits `panel` for each panel of each block of keys that the rows see, from the first to the
  /// last key, and `block` behind the panels of a block.
  void emitBlocks(Value first, Value last, function_ref<void(Value)> panel,
                  function_ref<void()> block);
  void emitBlock(function_ref<void(Value)> panel, function_ref<void()> block);
  void startPanel(Value panel);
  void emitWeights(Value panel);
  /// Turns scores into weights, and either their cotangents into gradients or, where delta is
  /// balanced, the sum of both into a correction of delta.
  void emitSoftmax(Value panel);
  /// Adds to a region with a number for each row.
  void addToRows(const Region &region, Value panel, int64_t vector, Value sum);
  /// Adds to the sums of p, and to the largest dp - delta.
  void measureRows(Value panel);
  void emitCorrections();
  void emitBalancedGradients(Value panel);
  void emitPanelGradients(Value panel);
  void emitBlockGradients();
  void addToBias(Value panel, Value count);
  /// Returns true if the log-sum-exp and delta are of these keys alone.
  bool hasAllKeys() const { return grad->hasAttr(nn::NnDialect::kWholeKeysAttr); }
  /// The number of rows of a panel that see a key of the block.
  Value getCount(Value panel) {
    return mlir::arith::IndexCastOp::create(b, b.getIndexType(),
                                            loadScalar(counts.buffer, add(countsBase, panel)));
  }
  /// The index of the gradient of a bias, which exists for one block at a time.
  Value atBias(Value row, int64_t vector) {
    return plan.usesDot ? at(row, vector) : add(rowsBase, at(row, vector));
  }
  /// Emits the stores of p, and of ds, which is p times `difference`, the cotangent less delta, for
  /// the products. `slope` is the derivative of the soft cap, or null.
  void storeGradients(Value row, int64_t vector, Value weight, Value kept, Value difference,
                      Value slope);
  void storeWeights(Value row, int64_t vector, Value weight, Value gradient);
  /// Pairs the gradients of consecutive keys.
  void pairGradients();

  /// Gradients of keys or values: sums over the block's rows of a weight, which has a row for each
  /// key, times a row of queries or cotangents.
  struct KeyGradient {
    const Region &weights;
    /// The first element, or pair of elements, of the block's first row.
    Value rows, base;
    int64_t columns;
    Value target, targetBase;
  };
  void emitKeyGradients(const KeyGradient &gradient);
  /// Emits a tile of keys and columns: `count` vectors of `size` lanes.
  void emitKeyTile(const KeyGradient &gradient, int64_t keys, Value firstRow, Value column,
                   int64_t count, int64_t size);

  /// Packs what is subtracted from the scores of each row, its factor, and delta.
  void packRowScalars();
  /// Copies the rows of queries or cotangents, widened or as pairs.
  void copyRows(Value source, int64_t columns, const Region &region);
  void fill(Value buffer, Value first, Value count);

  nn::AttentionGradOp grad;
  int64_t batchItems, headItems, scoreRows, outSteps;
  bool balances;

  /// Cotangents of the block's rows as panels; cotangents of scores, then ds; ds before the cap
  /// and the scale, for the bias; gradients of the queries.
  Region outPanels, gradients, biasGradients, queryGradients;
  /// In bf16: p and ds of all panels with a row for each key, ds of a panel as pairs of keys.
  Region weightRows, gradientRows, gradientPairs;
  /// For each row what is subtracted from its scores, the exponent that remains, and delta.
  Region shifts, rests, deltas;
  /// For each row the sum of p (dp - delta), which becomes the correction of delta. If the keys may
  /// be a part: the largest dp - delta; the sum of p.
  Region corrections, largest, totals;
  /// The derivatives of the soft cap.
  Region slopes;
  /// The rows of each panel that see a key of the block.
  Region counts;
  /// Widened rows, or pairs of rows; pairs of keys.
  Region queryRows, outRows, keyPairs;
  /// Where the scores of the present block begin, its counts, and the rows of p and ds of the
  /// present panel.
  Value blockBase, countsBase, rowsBase;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONGRADIENT_H

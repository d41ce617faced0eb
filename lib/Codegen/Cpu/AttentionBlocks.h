//===- AttentionBlocks.h - attention with queries as lanes ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// An item (`emitItem`) is a block of queries. It packs the queries, and for each block of keys
// that any of them sees (`emitRows`) it packs keys, values and biases, and updates each panel
// (`emitPanel`): scores, maxima, probabilities, products. `emitResult` divides by the sums.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H

#include "meshwright/lib/Codegen/Cpu/AttentionPanels.h"

namespace meshwright::lower {

/// Emits attention for blocks of queries.
class AttentionBlocks final : public AttentionPanels {
public:
  explicit AttentionBlocks(const AttentionKernel &kernel);

private:
  void emitItem(Value item) override;
  void emitPanel(Value panel);
  void emitProbabilities(Value panel);
  void emitProducts(Value panel);
  void emitLogSumExp();
  /// Emits the results of rows that see no key.
  void emitNothing();
  /// Emits the results of a block of rows, which see no keys outside of first .. last.
  void emitRows(Value first, Value last);

  Region probabilities, valuePairs, results, maxima, sums, scales;
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_ATTENTIONBLOCKS_H

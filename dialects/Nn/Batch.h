//===- Batch.h - the inputs whose rows are the batch ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_BATCH_H
#define MESHWRIGHT_DIALECTS_NN_BATCH_H

#include "mlir/Interfaces/FunctionInterfaces.h"

#include <optional>

namespace meshwright::nn {

/// On an input: whether its dimension 0 is the batch (bool). Without it `BatchRule` decides.
inline constexpr llvm::StringLiteral kBatchAttr = "nn.batch";

/// The statement of `kBatchAttr` about an argument; none without the attribute.
std::optional<bool> getStatedBatch(mlir::FunctionOpInterface function, unsigned argument);

/// Decides which inputs data parallelism splits, and which a step of several microbatches cuts into
/// chunks: those whose dimension 0 is the batch.
///
/// - A statement (`kBatchAttr`) decides about its input.
/// - The size of the batch is dimension 0 of the first input that is stated to be one. Without such
///   an input it is that of the first input without a statement. A scalar has none.
/// - Another input has the batch if its dimension 0 has that size.
class BatchRule {
public:
  /// Adds an input. Inputs are added in their order, before the first question.
  void add(llvm::ArrayRef<int64_t> shape, std::optional<bool> stated = std::nullopt);

  /// The size of the batch; 0 if there is none.
  int64_t getSize() const { return size.value_or(0); }
  bool hasInputs() const { return size.has_value(); }

  /// Returns true if dimension 0 of an input, or of another value, is the batch.
  bool isBatch(llvm::ArrayRef<int64_t> shape, std::optional<bool> stated = std::nullopt) const;

private:
  std::optional<int64_t> size;
  bool isStated = false;
};

/// For each argument of a function, true if it is an input whose dimension 0 is the batch.
llvm::SmallVector<bool> findBatchInputs(mlir::FunctionOpInterface function);

} // namespace meshwright::nn

#endif // MESHWRIGHT_DIALECTS_NN_BATCH_H

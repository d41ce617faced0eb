//===- AttentionShape.h - a launch of attention -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The sizes, the mask and the buffers of nn.attention and nn.attention_grad, as the kernels of all
// targets see them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ATTENTIONSHAPE_H
#define MESHWRIGHT_LIB_CODEGEN_ATTENTIONSHAPE_H

#include "meshwright/lib/Codegen/AttentionBias.h"

#include "meshwright/dialects/Nn/Nn.h"

#include <optional>

namespace meshwright::lower {

/// The sizes of an op, and the structure of its mask.
struct AttentionShape {
  AttentionShape() = default;
  explicit AttentionShape(nn::ScoresOpInterface op);

  /// `keys` counts the keys that any query may see (up to kv_length), `keyRows` the keys in
  /// memory.
  int64_t batch, queryHeads, keyHeads, queries, keys, keyRows, features, valueFeatures;
  /// A query at i sees keys from i - left to i + right.
  std::optional<int64_t> left, right;
  /// Positions of queries and keys are operands. Keys at negative positions are padding.
  bool hasPositions = false;
  /// Each row of the batch has its own positions of queries, and of keys.
  bool hasQueryPositionsOfRow = false, hasKeyPositionsOfRow = false;
  /// The types of elements in memory and of arithmetic: f32, or f64 for f64.
  mlir::Type element, compute;
  /// Lower bounds of the operations and the bytes.
  int64_t flops, bytes;

  /// Query heads that share a key head. They are stored consecutively.
  int64_t getGroup() const { return keyHeads ? queryHeads / keyHeads : 1; }
  /// Returns true if some query of the op may not see some key because of its position.
  bool isPositional() const { return left || right || hasPositions; }
};

/// The one attention, or backward pass of one, of a launch, and the ops that compute its bias in the kernel; none if the
/// kernel reads it.
struct AttentionLaunch {
  nn::ScoresOpInterface op;
  std::optional<KernelRegion> biasRegion;

  /// Returns none if the launch computes something else.
  static std::optional<AttentionLaunch> of(rt::KernelOp launch);
  /// The values that the kernel reads: query, key, value, and, if the op has them, key padding,
  /// the bias or the inputs of its ops, positions, lengths, and operands of a backward pass.
  llvm::SmallVector<mlir::Value> getInputs() const;
};

/// The flat buffers of a kernel of attention.
struct AttentionBuffers {
  mlir::Value query, key, value, padding, bias, queryPositions, keyPositions, lengths, result, lse;
  /// The operands of dropout.
  mlir::Value dropRows, dropKeys, seed, step;
  /// The buffers of a backward pass, besides the log-sum-exp.
  mlir::Value delta, cotangent, queryGrad, keyGrad, valueGrad, biasGrad;

  using Member = std::pair<mlir::Value, mlir::Value *>;
  /// The tensors that the kernel reads, each with the member for its buffer; null for inputs of
  /// the bias.
  llvm::SmallVector<Member> getInputs(nn::ScoresOpInterface op,
                                      const std::optional<KernelRegion> &biasRegion);
  /// The tensors that it writes.
  llvm::SmallVector<Member> getOutputs(nn::ScoresOpInterface op);
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ATTENTIONSHAPE_H

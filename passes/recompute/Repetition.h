//===- Repetition.h - copies of a segment's ops -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_RECOMPUTE_REPETITION_H
#define MESHWRIGHT_PASSES_RECOMPUTE_REPETITION_H

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/passes/recompute/ForwardPass.h"

#include <optional>

namespace meshwright {

/// The ops of a segment that are computed again, before its part of the backward pass.
struct Repetition {
  /// The ops, in program order.
  mlir::SmallVector<mlir::Operation *> ops;
  /// The results that backward ops read from the copies instead.
  mlir::SmallVector<mlir::Value> values;
  /// The first backward op that reads one of them, and a value that comes before it.
  mlir::Operation *first = nullptr;
  mlir::Value earlier;
  /// Bytes that need not be kept, and picoseconds of the copies.
  int64_t bytes = 0, time = 0;
};

/// Plans to repeat what the backward pass needs of a segment: all ops, or only `cheap` ones, which
/// neither multiply matrices nor communicate. Nothing if that saves no memory.
std::optional<Repetition> planRepetition(const ForwardPass &pass, Segment segment, bool cheap,
                                         const CostModel &model);

/// Writes the copies. They wait for `earlier`, and for what the backward ops from `begin` on leave
/// to the end of the program, such as gradients of weights, which would else hold the values that
/// they read. `pass` is of the program before any copies.
void repeat(const ForwardPass &pass, const Repetition &repetition, mlir::Operation *begin);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_RECOMPUTE_REPETITION_H

//===- BufferPlan.h - how large an arena has to be --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_BUFFERPLAN_H
#define MESHWRIGHT_PASSES_SCHEDULE_BUFFERPLAN_H

#include "meshwright/passes/schedule/ArenaSearch.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <vector>

namespace meshwright {

struct BufferPlan {
  /// Bytes of the arena, and the largest sum of the buffers that are needed at once.
  int64_t arena = 0, live = 0;
  /// Bytes beside the arena that undo updates of states (StateUpdates.h).
  int64_t recovery = 0;
};

/// The plan of a function of launches in its present order, by a search with this budget
/// that ends when arena and recovery are at most `enough`. Leaves the function as it is.
BufferPlan planBuffers(mlir::func::FuncOp func, SearchEffort effort, int64_t enough = 0);

/// The same by one search after the other, until arena and recovery are at most `bound`. Without a search
/// where none can be: the arena is then the largest sum of buffers that are needed at once.
BufferPlan planBuffersWithin(mlir::func::FuncOp func, llvm::ArrayRef<SearchEffort> efforts, int64_t enough,
                             int64_t bound);

struct LiveBytes {
  /// For each op of the body of a function of launches, in order, the bytes of the
  /// buffers that are needed while it runs; none for views and constants.
  std::vector<int64_t> whileRuns;
  /// See `BufferPlan`.
  int64_t recovery = 0;
};

LiveBytes getLiveBytes(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_BUFFERPLAN_H

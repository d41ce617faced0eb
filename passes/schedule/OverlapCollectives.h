//===- OverlapCollectives.h - an order that hides communication -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_OVERLAPCOLLECTIVES_H
#define MESHWRIGHT_PASSES_SCHEDULE_OVERLAPCOLLECTIVES_H

#include "meshwright/lib/Support/OnOffAuto.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

struct OverlapResult {
  /// Failure after an error.
  mlir::LogicalResult status;
  /// The fewest bytes that an order needs, if none keeps to the ceiling.
  int64_t needed = 0;
  /// Picoseconds of the schedule.
  int64_t time = 0;
  /// The ceiling asked for no other order than the one that hides most.
  bool hidesMost = true;
};

/// The bytes that a rank needs beside the arena in any order: arguments, packing, other entries and commits.
int64_t getFixedBytes(mlir::func::FuncOp func);

/// Orders the launches of a function as `--overlap-collectives` does. The function's own requests
/// (`rt.overlap`, and `rt.memory_ceiling` where `ceiling` is 0) hold. If the order that hides most does
/// not keep to the ceiling beside second buffers for states, the function copies states
/// (`rt.copies_states`). With `bestOnly` it fails then, without an error. With `fitOnly` small collectives that
/// may travel together stay apart, since only whether an order fits is asked.
OverlapResult overlapCollectives(mlir::func::FuncOp func, OnOffAuto mode = OnOffAuto::Auto,
                                 int64_t ceiling = 0, bool bestOnly = false, bool fitOnly = false);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_OVERLAPCOLLECTIVES_H

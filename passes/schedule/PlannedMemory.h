//===- PlannedMemory.h - what a rank holds, as scheduled --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Which values are in memory, and when, is known once kernels are formed and their
// order is chosen: what only kernels read of others within them (masks that attention
// computes, elements of fused ops) never is.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H
#define MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H

#include "meshwright/lib/Report/Report.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <string>

namespace meshwright {

struct PlannedMemory {
  Memory memory;
  /// Why no order keeps to the ceiling, and the least that one needs; empty if one does.
  std::string refusal;
  int64_t needed = 0;
};

/// Schedules a copy of the module of an SPMD or a global program, as its function says
/// it is to be, and measures that. `ceiling` is in bytes; none if 0. Where a program
/// cannot be scheduled (it branches) all values count, from definition to last use.
PlannedMemory planMemory(mlir::FunctionOpInterface function, int64_t ceiling = 0);

/// What a planned program holds besides its weights: their packing, its inputs and its
/// arena. The weights and the stages are `counted` on the program that it was made from.
Memory withPlan(Memory counted, mlir::func::FuncOp planned);

/// Bytes that a function of launches takes for packed parameters (`rt.prepare`) beyond
/// those of the parameters: padding, and all of those that are read as they lie, too.
/// Zero, after an error, if the function's target is unknown.
int64_t getPackingBytes(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PLANNEDMEMORY_H

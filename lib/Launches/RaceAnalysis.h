//===- RaceAnalysis.h - order and memory of launches ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Proves that no launch of an rt program (a kernel or a collective, docs/dialects/rt.md)
// destroys a value that another one needs, and that ranks run collectives in one order.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H
#define MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Checks a function, and fails with one error. A function without launches passes.
/// - Each `rt.start` of a collective has exactly one `rt.wait`.
/// - The collectives of a stream have one role, and those in flight on different streams have
///   groups that share at most one rank, or different roles. So a stream is axes and a role, and
///   ranks that join several streams cannot wait for each other in a circle
///   (docs/rationale/streams-by-role.md).
/// - Each `rt.graph_begin` is followed by its `rt.graph_end`, and no collective is in flight at
///   either.
/// If the function has an arena (`rt.arena`), the memory of all results:
/// - All results of launches have offsets inside the arena.
/// - No launch writes over a value that a later launch reads, over memory that a collective
///   in flight reads or writes, or over another of its own results.
/// - No launch writes over its operand, except a kernel that may write in place (InPlace.h).
/// - No launch writes over a state, except a kernel that gives it its new value, and only if no
///   later launch needs the value that the state's memory holds (StateUpdates.h). The logs of a
///   state do not overlap.
mlir::LogicalResult verifyRaces(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

//===- RaceAnalysis.h - order and places of launches ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Proves that an rt program computes its values although launches share memory and run at
// the same time.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H
#define MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Checks a function of launches, and fails with one error. Other functions pass.
/// - Each start has exactly one wait.
/// - Collectives in flight on different streams have groups that share at most one rank.
///   All ranks issue collectives whose groups share more in the same order.
/// If the function has an arena:
/// - All results have offsets, inside the arena.
/// - No launch writes over a value that a later launch reads, or where a collective in
///   flight reads or writes.
/// - No launch writes over its operand, except a kernel that reads each element of it for
///   the element at the same place only.
mlir::LogicalResult verifyRaces(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

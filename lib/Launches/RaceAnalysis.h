//===- RaceAnalysis.h - order and places of launches ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Proves that an rt program computes what its values say, although launches
// share memory and run at once.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H
#define MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// Proves of a function of launches (others pass), or fails with one error:
/// - each start has exactly one wait;
/// - collectives in flight on different streams have groups that share at most
///   one rank: those that share more are in one order on all ranks;
/// and, where the function has an arena,
/// - all results have places, inside the arena;
/// - no launch writes where a value lies that is needed later, or where a
///   collective in flight reads or writes;
/// - none writes over an operand, except a kernel that reads each element of it
///   for the element at the same place only.
mlir::LogicalResult verifyRaces(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_RACEANALYSIS_H

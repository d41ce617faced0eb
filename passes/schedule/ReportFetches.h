//===- ReportFetches.h - when weights are gathered --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads from a planned function when its weights are gathered, where they are then, and which part of
// the time shows.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_REPORTFETCHES_H
#define MESHWRIGHT_PASSES_SCHEDULE_REPORTFETCHES_H

#include "meshwright/lib/Report/Fetches.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// The gathers and scatters of a planned entry: each of its last step, and the times of all steps of a
/// call. None if it gathers no weight.
std::optional<FetchReport> reportFetches(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_REPORTFETCHES_H

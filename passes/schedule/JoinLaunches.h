//===- JoinLaunches.h - small neighbours of an order travel together -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_JOINLAUNCHES_H
#define MESHWRIGHT_PASSES_SCHEDULE_JOINLAUNCHES_H

#include "meshwright/passes/schedule/LaunchTasks.h"

#include <optional>

namespace meshwright {

/// Joins small gathers of weights, and small scatters of gradients, of a function of launches whose order is
/// chosen, if its arena stays within `budget` bytes and the order takes no longer. Kernels stay in their order.
/// Returns the schedule of the new order; none if nothing is joined.
std::optional<Schedule> joinLaunches(mlir::func::FuncOp func, const CostModel &model, RunBeside beside,
                                     int64_t budget);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_JOINLAUNCHES_H

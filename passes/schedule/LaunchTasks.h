//===- LaunchTasks.h - launches as tasks with times -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_LAUNCHTASKS_H
#define MESHWRIGHT_PASSES_SCHEDULE_LAUNCHTASKS_H

#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/OnOffAuto.h"
#include "meshwright/passes/schedule/ListScheduler.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// The collectives that run beside kernels: those whose links work by themselves
/// (`CostModel::runsBeside`), all, or none.
enum class RunBeside { ByLink, Always, Never };

/// The overlap that the function asks for (`rt.overlap`); none if it does not say.
std::optional<OnOffAuto> getRequestedOverlap(mlir::func::FuncOp func);

/// The op that a launch is named after: a product if it has one, otherwise the last op.
mlir::Operation *getNamedOp(rt::KernelOp launch);

/// The work of a launch. One that replaces rows of a state moves these rows alone.
KernelWork getWork(rt::KernelOp kernel, bool replacesRows);

/// The tasks of a function of launches, in its order: kernels, and collectives with their
/// waits. Views, constants and prepared parameters are no tasks; dependences go through
/// them.
struct LaunchTasks {
  LaunchTasks(mlir::func::FuncOp func, const CostModel &model, RunBeside beside);

  /// For a report of the order as it is: the launch behind a wait begins when the collective has ended, whether
  /// it reads the results or not. A collective whose wait follows at once blocks the compute stream.
  void keepWaits();

  std::vector<ScheduleTask> tasks;
  std::vector<mlir::Operation *> launches;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_LAUNCHTASKS_H

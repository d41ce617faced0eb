//===- Pipeline.h - the schedule phase --------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_PIPELINE_H
#define MESHWRIGHT_PASSES_SCHEDULE_PIPELINE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassManager.h"

namespace meshwright {

struct ScheduleOptions {
  /// Keep every value that has an `nn.id` in memory between kernels, so that it can be
  /// probed.
  bool keepProbed = false;
  /// Cut collectives into chunks that overlap with kernels, where the function's
  /// `rt.overlap` allows it. Probed values are those of whole tensors, so a program that
  /// keeps them is not cut.
  bool splitCollectives = true;
  /// Prove the placement of the result. `buildSchedulePhase` (passes/Pipeline.h) does.
  bool verifyPlacement = false;
};

/// Adds the passes from an SPMD or a global program to a planned rt program, for the target
/// that the function names in `rt.target`. They prove nothing: see `buildSchedulePhase`
/// (passes/Pipeline.h).
void buildSchedulePipeline(mlir::OpPassManager &pm, const ScheduleOptions &options = {});

/// The parts of `buildSchedulePipeline`. The first forms launches, and is the same under any ceiling. The
/// second moves gathers of weights and updates to their places. `overlapCollectives` then orders all
/// launches, and the last part plans memory for that order.
void buildKernelPipeline(mlir::OpPassManager &pm, const ScheduleOptions &options = {});
void buildOrderPipeline(mlir::OpPassManager &pm);
void buildPlanPipeline(mlir::OpPassManager &pm, const ScheduleOptions &options = {});

/// Seconds that a rank's collectives take by the cost model.
struct CommunicationTime {
  /// While the compute stream is idle, and while it computes.
  double exposed = 0, hidden = 0;
  /// The time of the whole program.
  double total = 0;
  /// The time of kernels, by their class (KernelWork::Class).
  double kernels[4] = {};
};

/// The times of a function of launches in its present order.
CommunicationTime estimateCommunication(mlir::func::FuncOp func);

/// Returns true if the function is a planned rt program.
bool isPlanned(mlir::func::FuncOp func);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_PIPELINE_H

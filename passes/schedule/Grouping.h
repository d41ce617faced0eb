//===- Grouping.h - which ops are one kernel --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_GROUPING_H
#define MESHWRIGHT_PASSES_SCHEDULE_GROUPING_H

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Support/DecisionLog.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// The ops that one launch computes.
struct KernelGroup {
  /// The ops, in program order. An op may be in several groups; then each of them computes it.
  llvm::SmallVector<mlir::Operation *> ops;
  /// The values that ops outside read.
  llvm::SmallVector<mlir::Value> results;
};

struct GroupingOptions {
  /// Every value that has an `nn.id` is a result of its group.
  bool keepProbed;
  /// The target that kernels are written for.
  const KernelTarget &target;
};

/// Adds a decision of form-kernels on an op to the log.
void logKernelDecision(mlir::Operation *op, Outcome outcome, std::string message,
                       std::vector<std::pair<std::string, double>> numbers = {});

/// The kernels of a function, in no order. Dead ops are in no kernel; neither are
/// collectives, views and constants that are arrays.
std::vector<KernelGroup> groupKernels(mlir::func::FuncOp func, const GroupingOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_GROUPING_H

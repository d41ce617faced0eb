//===- RunPasses.h - passes, and one verification behind them ---*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_RUNPASSES_H
#define MESHWRIGHT_LIB_SUPPORT_RUNPASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/PassManager.h"

namespace meshwright {

/// Runs the passes that `build` adds, and verifies the module behind the last one.
///
/// A pass manager verifies behind each pass, which reads all ops of a program once a pass: a fifth of
/// the time of a plan. `sharding-opt` does so. It names the pass that leaves an invalid op.
mlir::LogicalResult runPasses(mlir::ModuleOp module,
                              llvm::function_ref<void(mlir::OpPassManager &)> build);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_RUNPASSES_H

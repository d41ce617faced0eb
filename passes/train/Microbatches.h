//===- Microbatches.h - entries that run on chunks of their inputs *- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A call of an entry has two steps: a private copy of the entry runs on all microbatches but the last,
// and the entry on the last one. It adds up the sums that the copy leaves.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_MICROBATCHES_H
#define MESHWRIGHT_PASSES_TRAIN_MICROBATCHES_H

#include "meshwright/passes/train/States.h"
#include "meshwright/passes/train/TrainedParameters.h"

namespace mlir {
class IRMapping;
} // namespace mlir

namespace meshwright {

/// Lets entries run their program on `count` microbatches.
class Microbatches {
public:
  Microbatches(int64_t count, States &states) : count(count), states(states) {}

  /// Makes outputs without dimensions means over microbatches. The others are those of all rows.
  mlir::LogicalResult splitEvaluation(mlir::func::FuncOp evaluate);
  /// Makes the gradients of a step means over microbatches, too. The function is for one of them,
  /// the last. The step runs the others before, so that sums over ranks overlap with its backward
  /// pass.
  mlir::LogicalResult splitStep(mlir::func::FuncOp step, llvm::MutableArrayRef<Trained> trained);

private:
  mlir::func::FuncOp splitOff(mlir::func::FuncOp entry, mlir::IRMapping &map);
  void passStates(mlir::func::FuncOp step, mlir::func::FuncOp repeated);
  void drawPerMicrobatch(mlir::func::FuncOp step, mlir::func::FuncOp repeated);
  void countMicrobatches(mlir::func::FuncOp step, mlir::func::FuncOp repeated);
  mlir::LogicalResult sumOutputs(mlir::func::FuncOp repeated, mlir::func::FuncOp entry);
  void accumulate(nn::Writer &w, const std::string &name, mlir::Value value, llvm::StringRef role);
  mlir::Value takeMean(nn::Writer &w, const std::string &name, mlir::Value value);
  mlir::Value readMicrobatch(nn::Writer &w);

  int64_t count;
  States &states;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_MICROBATCHES_H

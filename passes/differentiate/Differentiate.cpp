//===- Differentiate.cpp - gradients to ops -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/differentiate/Differentiator.h"
#include "meshwright/passes/differentiate/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_DIFFERENTIATEGRADIENTSPASS
#include "meshwright/passes/differentiate/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Erases ops that only stop gradients. One that a policy gave a sharding stays. Returns true if
/// there are some.
static bool eraseStops(func::FuncOp func) {
  bool changed = false;
  func.walk([&](nn::StopGradientOp op) {
    if (op->hasAttr(dist::DistDialect::kShardingAttr))
      return;
    op.getResult().replaceAllUsesWith(op.getInput());
    op.erase();
    changed = true;
  });
  return changed;
}

namespace {
struct DifferentiateGradientsPass
    : meshwright::impl::DifferentiateGradientsPassBase<DifferentiateGradientsPass> {
  void runOnOperation() override {
    bool changed = false;
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      llvm::MapVector<Value, SmallVector<nn::GradientOp>> byLoss;
      func.walk([&](nn::GradientOp op) { byLoss[op.getLoss()].push_back(op); });
      changed |= !byLoss.empty();
      if (!byLoss.empty() && !func.getBody().hasOneBlock()) {
        func.emitOpError() << "has " << func.getBody().getBlocks().size()
                           << " blocks, expected one";
        return signalPassFailure();
      }
      for (auto &[loss, gradients] : byLoss)
        if (failed(Differentiator(func, gradients).run()))
          return signalPassFailure();
      changed |= eraseStops(func);
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

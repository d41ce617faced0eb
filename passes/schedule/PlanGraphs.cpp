//===- PlanGraphs.cpp - launches that a device may record -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_PLANGRAPHSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Returns true if an op is a part of what the device does: a launch, or the end of one.
static bool isDeviceWork(Operation *op) { return isa<rt::KernelOp, rt::StartOp, rt::WaitOp>(op); }

/// The calls for which the host learns numbers of rows from the device: sizes of messages, and places of rows.
static constexpr int64_t kAwaited[] = {MW_RT_CALL_SEND_ROWS, MW_RT_CALL_RETURN_ROWS,  MW_RT_CALL_COMPACT,
                                       MW_RT_CALL_EXPAND,    MW_RT_CALL_ALL_GATHER_V, MW_RT_CALL_REDUCE_SCATTER_V};

/// Returns true if the host waits for the device at an op.
static bool isAwaited(Operation *op) {
  auto moves = [](Operation &own) {
    std::optional<int64_t> call = lower::getCallKind(&own);
    return call && llvm::is_contained(kAwaited, *call);
  };
  if (auto kernel = dyn_cast<rt::KernelOp>(op))
    return llvm::any_of(kernel.getOps(), moves);
  auto start = dyn_cast<rt::StartOp>(op);
  return start && moves(*start.getCollective());
}

/// Returns true if a probe follows the op, which gives a value that has an `nn.id`.
static bool isProbed(Operation *op) {
  auto hasId = [](Value value) {
    Operation *source = rt::getSource(value).getDefiningOp();
    return source && source->hasAttr(nn::NnDialect::kIdAttr);
  };
  return isa<rt::KernelOp, rt::WaitOp>(op) && llvm::any_of(op->getResults(), hasId);
}

namespace {

struct PlanGraphsPass : meshwright::impl::PlanGraphsPassBase<PlanGraphsPass> {
  using PlanGraphsPassBase::PlanGraphsPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal() || !func.getBody().hasOneBlock())
      return;
    std::shared_ptr<const KernelTarget> known = getKernelTarget(func, target);
    if (!known)
      return signalPassFailure();
    for (Operation &op : llvm::make_early_inc_range(func.front()))
      if (isa<rt::GraphBeginOp, rt::GraphEndOp>(op))
        op.erase();
    if (known->hasGraphs())
      plan(func.front());
  }

private:
  /// Marks the longest lists of ops without probes, or ops for which the host waits, at whose ends no
  /// collective is in flight.
  void plan(Block &block) {
    Operation *first = nullptr, *last = nullptr;
    int64_t inFlight = 0;
    auto finish = [&] {
      if (first && last) {
        OpBuilder builder(first);
        rt::GraphBeginOp::create(builder, first->getLoc());
        builder.setInsertionPointAfter(last);
        rt::GraphEndOp::create(builder, last->getLoc());
      }
      first = last = nullptr;
    };
    for (Operation &op : llvm::make_early_inc_range(block)) {
      if (!isDeviceWork(&op))
        continue;
      if (isAwaited(&op) || (keepProbed && isProbed(&op)))
        finish();
      else if (!first && inFlight == 0)
        first = &op;
      inFlight += isa<rt::StartOp>(op) - isa<rt::WaitOp>(op);
      if (first && inFlight == 0)
        last = &op;
    }
    finish();
  }
};

} // namespace

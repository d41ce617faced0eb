//===- RequestSchedule.cpp - how a program is to be scheduled -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_REQUESTSCHEDULE
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

struct RequestSchedulePass : meshwright::impl::RequestScheduleBase<RequestSchedulePass> {
  using RequestScheduleBase::RequestScheduleBase;

  LogicalResult initialize(MLIRContext *context) override {
    if (overlap != "on" && overlap != "off" && overlap != "auto")
      return emitError(UnknownLoc::get(context)) << "request-schedule: option 'overlap' is '"
                                                 << overlap << "', expected on, off or auto";
    return success();
  }

  void runOnOperation() override {
    Builder builder(&getContext());
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (!dist::getSpmdMeshSymbol(func))
        continue;
      if (overlap != "auto")
        func->setAttr(rt::RtDialect::kOverlapAttr, builder.getStringAttr(overlap));
      if (memoryCeiling)
        func->setAttr(rt::RtDialect::kCeilingAttr, builder.getI64IntegerAttr(memoryCeiling));
    }
  }
};

} // namespace

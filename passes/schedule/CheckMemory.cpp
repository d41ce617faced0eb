//===- CheckMemory.cpp - refuse programs that do not fit ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/PlannedMemory.h"

namespace meshwright {
#define GEN_PASS_DEF_CHECKMEMORYPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct CheckMemoryPass : meshwright::impl::CheckMemoryPassBase<CheckMemoryPass> {
  using CheckMemoryPassBase::CheckMemoryPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (auto function : getOperation().getOps<FunctionOpInterface>()) {
      if (!ceiling || !function->hasAttr(dist::DistDialect::kSpmdAttr) || function.isExternal())
        continue;
      PlannedMemory planned = planMemory(function, ceiling);
      if (planned.refusal.empty())
        continue;
      emitError(function.getLoc()) << planned.refusal;
      signalPassFailure();
    }
  }
};
} // namespace

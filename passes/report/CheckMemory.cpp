//===- CheckMemory.cpp - refuse programs that do not fit ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/report/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_CHECKMEMORYPASS
#include "meshwright/passes/report/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct CheckMemoryPass : meshwright::impl::CheckMemoryPassBase<CheckMemoryPass> {
  using CheckMemoryPassBase::CheckMemoryPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (auto function : getOperation().getOps<FunctionOpInterface>()) {
      if (!function->hasAttr(dist::DistDialect::kSpmdAttr) || function.isExternal())
        continue;
      Memory memory = countMemory(function);
      if (ceiling == 0 || memory.weights + memory.activationsPeak <= ceiling)
        continue;
      emitError(function.getLoc(), "'")
          << function.getName() << "' needs " << memory.weights + memory.activationsPeak
          << " bytes on a rank, " << memory.weights << " for weights and " << memory.activationsPeak
          << " for inputs and activations: expected at most " << int64_t(ceiling)
          << ", the memory ceiling";
      signalPassFailure();
    }
  }
};
} // namespace

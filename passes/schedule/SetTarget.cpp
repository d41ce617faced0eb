//===- SetTarget.cpp - the target of a program ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_SETTARGETPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct SetTargetPass : meshwright::impl::SetTargetPassBase<SetTargetPass> {
  using SetTargetPassBase::SetTargetPassBase;

  void runOnOperation() override {
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      std::shared_ptr<const KernelTarget> known = getKernelTarget(func, target);
      if (!known)
        return signalPassFailure();
      setTarget(func, known->getName());
    }
  }
};
} // namespace

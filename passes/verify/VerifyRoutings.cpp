//===- VerifyRoutings.cpp - proves that rows are of one routing -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Placement/Routings.h"
#include "meshwright/passes/verify/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_VERIFYROUTINGSPASS
#include "meshwright/passes/verify/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

struct VerifyRoutingsPass : meshwright::impl::VerifyRoutingsPassBase<VerifyRoutingsPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    func::FuncOp func = getOperation();
    if (!func.isExternal() && !dist::getSpmdMesh(func) && failed(verifyRoutings(func)))
      signalPassFailure();
  }
};

} // namespace

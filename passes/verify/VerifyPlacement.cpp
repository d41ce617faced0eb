//===- VerifyPlacement.cpp - proves an SPMD program's placement -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/CountedRows.h"
#include "meshwright/lib/Placement/Pages.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Placement/TokenRows.h"
#include "meshwright/lib/Launches/RaceAnalysis.h"
#include "meshwright/passes/verify/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_VERIFYPLACEMENTPASS
#include "meshwright/passes/verify/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

struct VerifyPlacementPass : meshwright::impl::VerifyPlacementPassBase<VerifyPlacementPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    if (func->hasAttr(dist::DistDialect::kSpmdAttr)) {
      const FailureOr<PlacementAnalysis> &placement = getAnalysis<SharedPlacementAnalysis>().placement;
      if (failed(placement) || failed(verifyCountedRows(func, *placement)) ||
          failed(verifyTokenRows(func, *placement)) || failed(verifyPages(func, *placement)))
        return signalPassFailure();
    }
    if (failed(verifyRaces(func)))
      signalPassFailure();
  }
};

} // namespace

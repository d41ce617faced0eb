//===- CheckMeshAxes.cpp - warn of mesh axes that shard nothing -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/report/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_CHECKMESHAXESPASS
#include "meshwright/passes/report/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct CheckMeshAxesPass : meshwright::impl::CheckMeshAxesPassBase<CheckMeshAxesPass> {
  using CheckMeshAxesPassBase::CheckMeshAxesPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (auto function : getOperation().getOps<FunctionOpInterface>()) {
      if (!dist::getSpmdMeshSymbol(function) || function.isExternal())
        continue;
      auto meshOp = SymbolTable::lookupNearestSymbolFrom<dist::MeshOp>(
          function, dist::getSpmdMeshSymbol(function));
      for (dist::MeshAxisAttr axis : getIdleAxes(function))
        meshOp.emitWarning() << describeIdleAxis(axis);
    }
  }
};
} // namespace

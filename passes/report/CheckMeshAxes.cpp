//===- CheckMeshAxes.cpp - warn of mesh axes that shard nothing -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/report/Passes.h"

#include "llvm/ADT/MapVector.h"

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
    // The axes that are idle in all functions of a mesh.
    llvm::MapVector<Attribute, SmallVector<dist::MeshAxisAttr>> idle;
    for (auto function : getOperation().getOps<FunctionOpInterface>()) {
      FlatSymbolRefAttr symbol = dist::getSpmdMeshSymbol(function);
      if (!symbol || function.isExternal())
        continue;
      SmallVector<dist::MeshAxisAttr> own = getIdleAxes(function);
      auto [known, isNew] = idle.try_emplace(symbol, own);
      if (!isNew)
        llvm::erase_if(known->second,
                       [&](dist::MeshAxisAttr axis) { return !llvm::is_contained(own, axis); });
    }
    for (auto &[symbol, axes] : idle) {
      auto meshOp = SymbolTable::lookupNearestSymbolFrom<dist::MeshOp>(
          getOperation(), cast<FlatSymbolRefAttr>(symbol));
      for (dist::MeshAxisAttr axis : axes)
        meshOp.emitWarning() << describeIdleAxis(axis);
    }
  }
};
} // namespace

//===- Partition.cpp - global program to SPMD program ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/passes/partition/Partitioner.h"
#include "meshwright/passes/partition/Passes.h"

using namespace mlir;
using namespace meshwright;

namespace meshwright {
#define GEN_PASS_DEF_PARTITIONPASS
#include "meshwright/passes/partition/Passes.h.inc"
} // namespace meshwright

namespace {
struct PartitionPass : meshwright::impl::PartitionPassBase<PartitionPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto mesh = dist::getOnlyMesh(module);
    if (failed(mesh))
      return signalPassFailure();
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      Partitioner partitioner(func, mesh->getMesh(), FlatSymbolRefAttr::get(*mesh), *factors);
      // The placement has not been computed before, since the function had none.
      if (failed(partitioner.run()) ||
          failed(getChildAnalysis<SharedPlacementAnalysis>(func).placement))
        return signalPassFailure();
    }
    markAnalysesPreserved<SharedPlacementAnalysis>();
  }
};
} // namespace

//===- ExpandOps.cpp - ops that no target has a kernel for ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_EXPANDOPSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct ExpandOpsPass : meshwright::impl::ExpandOpsPassBase<ExpandOpsPass> {
  void runOnOperation() override {
    bool changed = false;
    for (Operation &op : llvm::make_early_inc_range(getOperation().getBody().getOps())) {
      auto expandable = dyn_cast<dist::ExpandOpInterface>(op);
      if (!expandable || !expandable.needsExpansion())
        continue;
      OpBuilder builder(&op);
      Value result = expandable.expand(builder);
      if (Attribute id = op.getAttr(nn::NnDialect::kIdAttr))
        result.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
      op.getResult(0).replaceAllUsesWith(result);
      op.erase();
      changed = true;
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

//===- ExpandOps.cpp - ops that no target has a kernel for ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_EXPANDOPSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Returns true if products alone read a stored weight, and the target's read codes.
static bool isReadAsCodes(Operation *op, const KernelTarget &target) {
  auto weight = dyn_cast<nn::DequantizeOp>(op);
  return weight && target.isLibraryOp(weight) && lower::isCodedMatrix(weight) && !weight->use_empty() &&
         llvm::all_of(weight->getUses(), lower::mayReadCodes);
}

namespace {
struct ExpandOpsPass : meshwright::impl::ExpandOpsPassBase<ExpandOpsPass> {
  using ExpandOpsPassBase::ExpandOpsPassBase;

  void runOnOperation() override {
    bool changed = false;
    std::shared_ptr<const KernelTarget> kernelTarget;
    for (Operation &op : llvm::make_early_inc_range(getOperation().getBody().getOps())) {
      auto expandable = dyn_cast<dist::ExpandOpInterface>(op);
      if (!expandable || !expandable.needsExpansion())
        continue;
      if (!kernelTarget && !(kernelTarget = getKernelTarget(getOperation(), target)))
        return signalPassFailure();
      if (isReadAsCodes(&op, *kernelTarget))
        continue;
      OpBuilder builder(&op);
      Value result = kernelTarget->expand(builder, &op);
      if (!result)
        result = expandable.expand(builder);
      if (!result) {
        op.emitOpError("has no kernel of the target and no expansion");
        return signalPassFailure();
      }
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

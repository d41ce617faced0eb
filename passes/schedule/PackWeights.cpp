//===- PackWeights.cpp - parameters in the packed form of products --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKWEIGHTSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct PackWeightsPass : meshwright::impl::PackWeightsPassBase<PackWeightsPass> {
  using PackWeightsPassBase::PackWeightsPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    std::shared_ptr<const KernelTarget> kernelTarget = getKernelTarget(func, target);
    if (!kernelTarget)
      return signalPassFailure();
    auto begin = OpBuilder::atBlockBegin(&func.getBody().front());
    llvm::DenseMap<std::tuple<Value, int64_t, Attribute>, Value> packed;
    for (auto launch : func.getOps<rt::KernelOp>()) {
      std::optional<PackedWeight> weight =
          kernelTarget->getPackedWeight(lower::KernelRegion::of(launch));
      if (!weight)
        continue;
      OpOperand &operand = launch->getOpOperand(weight->operand);
      int64_t offset;
      auto parameter = dyn_cast<BlockArgument>(rt::getBuffer(operand.get(), &offset));
      if (!parameter || !func.getArgAttr(parameter.getArgNumber(), nn::NnDialect::kParameterAttr))
        continue;
      const mw_rt_packing &form = weight->packing;
      auto packing = rt::PackingAttr::get(&getContext(), form.k, form.n, form.transposed != 0,
                                          form.panel, form.group);
      Value &known = packed[{parameter, offset, packing}];
      if (!known) {
        OpBuilder builder = begin;
        if (Operation *view = operand.get().getDefiningOp())
          builder.setInsertionPointAfter(view);
        known = rt::PrepareOp::create(builder, parameter.getLoc(), operand.get(), packing);
      }
      operand.set(known);
    }
  }
};
} // namespace

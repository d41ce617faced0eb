//===- PackWeights.cpp - parameters in the form products read -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/lower/Gemm.h"
#include "meshwright/passes/schedule/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKWEIGHTS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct PackWeights : meshwright::impl::PackWeightsBase<PackWeights> {
  using PackWeightsBase::PackWeightsBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    llvm::Expected<Target> target = Target::get(targetCpu);
    if (!target) {
      func.emitError() << llvm::toString(target.takeError());
      return signalPassFailure();
    }
    auto builder = OpBuilder::atBlockBegin(&func.getBody().front());
    llvm::DenseMap<std::pair<Value, Attribute>, Value> packed;
    for (auto launch : func.getOps<rt::KernelOp>()) {
      std::optional<lower::GemmWeight> weight =
          lower::getGemmWeight(lower::KernelRegion::of(launch), *target);
      if (!weight)
        continue;
      OpOperand &operand = launch->getOpOperand(weight->operand);
      auto parameter = dyn_cast<BlockArgument>(rt::getBuffer(operand.get()));
      if (!parameter || parameter.getType() != operand.get().getType() ||
          !func.getArgAttr(parameter.getArgNumber(), nn::NnDialect::kParameterAttr))
        continue;
      const mw_rt_packing &form = weight->packing;
      auto packing = rt::PackingAttr::get(&getContext(), form.k, form.n, form.transposed != 0,
                                          form.panel, form.group);
      Value &known = packed[{parameter, packing}];
      if (!known)
        known = rt::PrepareOp::create(builder, parameter.getLoc(), parameter, packing);
      operand.set(known);
    }
  }
};
} // namespace

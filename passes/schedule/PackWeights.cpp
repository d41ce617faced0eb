//===- PackWeights.cpp - parameters in the packed form of products --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/IRMapping.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKWEIGHTSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// A weight without the waits of its readers. A parameter is packed at load and waits for nothing.
static Value skipWaits(OpBuilder &builder, Value weight) {
  Operation *view = weight.getDefiningOp();
  if (!view)
    return weight;
  Value source = skipWaits(builder, view->getOperand(0));
  if (isa<dist::AfterOp>(view))
    return source;
  if (source == view->getOperand(0))
    return weight;
  IRMapping mapping;
  mapping.map(view->getOperand(0), source);
  return builder.clone(*view, mapping)->getResult(0);
}

/// The packed weight behind all that a reader of `weight` waits for.
static Value addWaits(OpBuilder &builder, Value packed, Value weight) {
  Operation *view = weight.getDefiningOp();
  if (!view)
    return packed;
  packed = addWaits(builder, packed, view->getOperand(0));
  if (auto after = dyn_cast<dist::AfterOp>(view))
    packed = dist::AfterOp::create(builder, after.getLoc(), packed, after.getEarlier());
  return packed;
}

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
      if (!parameter || !getWeight(parameter))
        continue;
      const mw_rt_packing &form = weight->packing;
      auto packing = rt::PackingAttr::get(&getContext(), form.k, form.n, form.transposed != 0,
                                          form.panel, form.group);
      Value &known = packed[{parameter, offset, packing}];
      Value stored = operand.get();
      if (!known) {
        OpBuilder builder = begin;
        Value source = skipWaits(builder, stored);
        if (Operation *view = source.getDefiningOp())
          builder.setInsertionPointAfter(view);
        known = rt::PrepareOp::create(builder, parameter.getLoc(), source, packing);
      }
      OpBuilder builder(launch);
      operand.set(addWaits(builder, known, stored));
    }
    // A view that nothing reads has no place in an order of launches.
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
      if (rt::isView(&op) && op.use_empty())
        op.erase();
  }
};
} // namespace

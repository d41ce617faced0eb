//===- PackWeights.cpp - weights in the packed form of products -----------===//
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
#include "llvm/ADT/MapVector.h"

namespace meshwright {
#define GEN_PASS_DEF_PACKWEIGHTSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// A weight without the waits of its readers. It is packed before the call and waits for nothing.
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

/// The launches that read a part of an argument in one packed form.
struct Readers {
  BlockArgument argument;
  rt::PackingAttr packing;
  bool isState = false;
  SmallVector<OpOperand *> operands;
};

} // namespace

/// Returns true if the function gives the state of an argument another value.
static bool writesStateOf(func::FuncOp func, BlockArgument argument) {
  StringAttr name = rt::getState(argument);
  for (unsigned i = 0; i < func.getNumResults(); ++i)
    if (name && func.getResultAttr(i, nn::NnDialect::kStateAttr) == name)
      return true;
  return false;
}

/// Returns true if the launch computes other ops besides the product.
static bool isFused(Operation *launch) {
  return llvm::count_if(cast<rt::KernelOp>(launch).getOps(),
                        [](Operation &op) { return !rt::isView(&op); }) > 1;
}

/// Where a product reads a weight as it is stored, the library packs it. So to pack it once costs as
/// much as one product saves. If this function gives the weight another value, that is once in each
/// call, which pays if more than one product reads it, or one that the library cannot perform.
static bool pays(func::FuncOp func, const Readers &readers) {
  return !readers.isState || !writesStateOf(func, readers.argument) ||
         readers.operands.size() > 1 || isFused(readers.operands.front()->getOwner());
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
    llvm::MapVector<std::tuple<Value, int64_t, Attribute>, Readers> forms;
    for (auto launch : func.getOps<rt::KernelOp>()) {
      std::optional<PackedWeight> weight =
          kernelTarget->getPackedWeight(lower::KernelRegion::of(launch));
      if (!weight)
        continue;
      OpOperand &operand = launch->getOpOperand(weight->operand);
      int64_t offset;
      auto argument = dyn_cast<BlockArgument>(rt::getBuffer(operand.get(), &offset));
      std::optional<Weight> known = argument ? getWeight(argument) : std::nullopt;
      if (!known)
        continue;
      const mw_rt_packing &form = weight->packing;
      auto packing = rt::PackingAttr::get(&getContext(), form.k, form.n, form.transposed != 0,
                                          form.panel, form.group);
      Readers &readers = forms[{argument, offset, packing}];
      readers.argument = argument;
      readers.packing = packing;
      readers.isState = known->isState;
      readers.operands.push_back(&operand);
    }
    auto begin = OpBuilder::atBlockBegin(&func.getBody().front());
    for (auto &[key, readers] : forms) {
      if (!pays(func, readers))
        continue;
      OpBuilder builder = begin;
      Value source = skipWaits(builder, readers.operands.front()->get());
      if (Operation *view = source.getDefiningOp())
        builder.setInsertionPointAfter(view);
      auto prepared = rt::PrepareOp::create(
          builder, readers.argument.getLoc(), source, readers.packing,
          readers.isState ? rt::PrepareTime::Update : rt::PrepareTime::Load);
      for (OpOperand *operand : readers.operands) {
        OpBuilder atReader(operand->getOwner());
        operand->set(addWaits(atReader, prepared, operand->get()));
      }
    }
    // A view that nothing reads has no place in an order of launches.
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(func.front())))
      if (rt::isView(&op) && op.use_empty())
        op.erase();
  }
};
} // namespace

//===- FuseDecodings.cpp - products of weights in other forms -------------===//
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
#define GEN_PASS_DEF_FUSEDECODINGSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Returns true if the reader is a product that the library performs, and reads the value as its weight.
static bool isProductOf(OpOperand &use, const KernelTarget &target) {
  auto product = dyn_cast_or_null<nn::LinearOp>(rt::getOnlyOp(use.getOwner()));
  if (!product || !target.isLibraryOp(product))
    return false;
  Value inside = cast<rt::KernelOp>(use.getOwner()).getBlock().getArgument(use.getOperandNumber());
  return product.getWeight() == inside && inside.hasOneUse();
}

/// Lets the product decode the weight.
static void fuse(OpOperand &use, rt::KernelOp decoding) {
  Block &block = cast<rt::KernelOp>(use.getOwner()).getBlock();
  Value coded = decoding->getOperand(0);
  BlockArgument weight = block.getArgument(use.getOperandNumber());
  auto decode = cast<dist::DecodeOp>(rt::getOnlyOp(decoding));
  auto builder = OpBuilder::atBlockBegin(&block);
  auto own = dist::DecodeOp::create(builder, decode.getLoc(), decode.getResult().getType(), weight);
  weight.replaceAllUsesExcept(own.getResult(), own);
  weight.setType(coded.getType());
  use.set(coded);
}

namespace {
struct FuseDecodingsPass : meshwright::impl::FuseDecodingsPassBase<FuseDecodingsPass> {
  using FuseDecodingsPassBase::FuseDecodingsPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (func.isExternal())
      return;
    std::shared_ptr<const KernelTarget> kernelTarget = getKernelTarget(func, target);
    if (!kernelTarget)
      return signalPassFailure();
    if (!kernelTarget->multipliesForms())
      return;
    for (auto launch : llvm::make_early_inc_range(func.getOps<rt::KernelOp>())) {
      if (!isa_and_nonnull<dist::DecodeOp>(rt::getOnlyOp(launch)))
        continue;
      for (OpOperand &use : llvm::make_early_inc_range(launch.getResult(0).getUses()))
        if (isProductOf(use, *kernelTarget))
          fuse(use, launch);
      if (launch.use_empty())
        launch.erase();
    }
  }
};
} // namespace

//===- FuseDecodings.cpp - products of weights in other forms -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Codegen/RuntimeCalls.h"
#include "meshwright/passes/schedule/Passes.h"

#include "mlir/IR/IRMapping.h"

namespace meshwright {
#define GEN_PASS_DEF_FUSEDECODINGSPASS
#include "meshwright/passes/schedule/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// The op that brings a weight back from codes, if it is all that a launch does; else null.
static Operation *getDecoding(Operation *launch) {
  Operation *op = rt::getOnlyOp(launch);
  return isa_and_nonnull<dist::DecodeOp, nn::DequantizeOp>(op) ? op : nullptr;
}

/// Returns true if the reader is a product that the library performs, and reads the value as its weight.
static bool isProductOf(OpOperand &use, Operation *decoding, const KernelTarget &target) {
  Operation *product = rt::getOnlyOp(use.getOwner());
  if (!product || !target.isLibraryOp(product))
    return false;
  Value inside = cast<rt::KernelOp>(use.getOwner()).getBlock().getArgument(use.getOperandNumber());
  // A form has one matrix.
  return inside.hasOneUse() && lower::mayReadCodes(*inside.use_begin()) &&
         (isa<nn::LinearOp>(product) || isa<nn::DequantizeOp>(decoding));
}

/// Lets the product decode the weight.
static void fuse(OpOperand &use, rt::KernelOp decoding) {
  auto kernel = cast<rt::KernelOp>(use.getOwner());
  Block &block = kernel.getBlock();
  unsigned number = use.getOperandNumber();
  Operation *decode = rt::getOnlyOp(decoding);
  IRMapping mapping;
  for (auto [argument, value] : llvm::zip_equal(decoding.getBlock().getArguments(), decoding->getOperands())) {
    kernel->insertOperands(kernel->getNumOperands(), value);
    mapping.map(argument, block.addArgument(argument.getType(), argument.getLoc()));
  }
  auto builder = OpBuilder::atBlockBegin(&block);
  block.getArgument(number).replaceAllUsesWith(builder.clone(*decode, mapping)->getResult(0));
  block.eraseArgument(number);
  kernel->eraseOperand(number);
  if (std::optional<uint64_t> counter = kernel.getCountedBy(); counter && *counter > number)
    kernel.setCountedBy(*counter - 1);
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
      Operation *decoding = getDecoding(launch);
      if (!decoding)
        continue;
      for (OpOperand &use : llvm::make_early_inc_range(launch.getResult(0).getUses()))
        if (isProductOf(use, decoding, *kernelTarget))
          fuse(use, launch);
      if (launch.use_empty())
        launch.erase();
    }
  }
};
} // namespace

//===- NarrowGradients.cpp - gradients that travel in bf16 ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/passes/optimise/Passes.h"

#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_NARROWGRADIENTSPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Returns true for the scatter of one gradient in f32.
static bool isScatter(ReduceScatterOp op) {
  return op.getRole() == CollectiveRole::Gradients && op.getReduction() == ReductionKind::Sum &&
         op->getNumOperands() == 1 && getElementTypeOrSelf(op->getOperand(0).getType()).isF32();
}

/// Sends rounded parts, and sums them where they arrive.
static void narrow(ReduceScatterOp op) {
  OpBuilder builder(op);
  Location loc = op.getLoc();
  int64_t dim = op.getDims()[0];
  // A part stands before its scatter.
  auto whole = cast<RankedTensorType>(op->getOperand(0).getType());
  auto scattered = cast<RankedTensorType>(op->getResult(0).getType());
  auto toShape = [](RankedTensorType type, int64_t parts) {
    SmallVector<int64_t> shape(type.getShape());
    shape.insert(shape.begin(), parts);
    return type.clone(shape);
  };
  RankedTensorType rounded = whole.clone(builder.getBF16Type());
  Value value = nn::CastOp::create(builder, loc, rounded, op->getOperand(0), /*parts=*/true);
  auto first = value.getDefiningOp()->getIterator();
  value = PartsOp::create(builder, loc, toShape(rounded, 1), value, op.getAxes());
  RankedTensorType summands = toShape(scattered, whole.getDimSize(dim) / scattered.getDimSize(dim));
  Type sent = summands.clone(builder.getBF16Type());
  value = AllToAllOp::create(builder, loc, TypeRange(sent), value, op.getAxes(),
                             builder.getDenseI64ArrayAttr({0}),
                             builder.getDenseI64ArrayAttr({dim + 1}), CollectiveRole::Gradients)
              .getResult(0);
  value = nn::CastOp::create(builder, loc, summands, value);
  value = nn::ReduceOp::create(builder, loc, scattered, nn::ReduceKind::Sum, value,
                               builder.getDenseI64ArrayAttr({0}), /*keep_dims=*/false);
  if (Attribute mark = op->getAttr(nn::NnDialect::kBackwardAttr))
    for (Operation &own : llvm::make_range(first, op->getIterator()))
      own.setAttr(nn::NnDialect::kBackwardAttr, mark);
  op->getResult(0).replaceAllUsesWith(value);
  op->erase();
}

namespace {
struct NarrowGradientsPass : meshwright::impl::NarrowGradientsPassBase<NarrowGradientsPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!getSpmdMeshSymbol(func) || func.isDeclaration())
      return markAllAnalysesPreserved();
    SmallVector<ReduceScatterOp> scatters =
        llvm::to_vector(llvm::make_filter_range(func.getOps<ReduceScatterOp>(), isScatter));
    if (scatters.empty())
      return markAllAnalysesPreserved();
    for (ReduceScatterOp scatter : scatters)
      narrow(scatter);
    DistDialect::getDecisionLog(func.getContext())
        .add("narrow-gradients", Outcome::Applied, func.getLoc(),
             llvm::formatv("{0} gradients travel in bf16 and are summed in f32", scatters.size())
                 .str(),
             {{"gradients", double(scatters.size())}});
  }
};
} // namespace

//===- RefineBlocks.cpp - divide blocks that shards would cut -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

#include <numeric>

using namespace mlir;
using namespace meshwright;

namespace meshwright {
#define GEN_PASS_DEF_REFINEBLOCKSPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// The fewest elements of a part of a block. Scales of smaller ones would take as much as the codes.
static constexpr int64_t kLeastPart = 8;

/// The most ranks over which the tensor axes of a mesh may shard features: those of experts, too, or of
/// other weights.
static int64_t getRanks(ModuleOp module, bool ofExperts) {
  RoleAxes tensor(AxisRole::Tensor, AxisChoice()), experts(AxisRole::Expert, AxisChoice());
  int64_t most = 1;
  for (dist::MeshOp mesh : module.getOps<dist::MeshOp>())
    for (const StageMesh &view : getStageMeshes(mesh)) {
      dist::AxisList taken = experts.get(mesh, view), free;
      for (const dist::Axis &axis : tensor.get(mesh, view))
        if (!ofExperts || !llvm::is_contained(taken, axis))
          free.push_back(axis);
      most = std::lcm(most, dist::getNumShards(free));
    }
  return most;
}

/// The size of the parts of a dimension's blocks, such that each of so many shards has whole ones. The
/// block itself where they would be too small.
static int64_t getPart(int64_t size, int64_t block, int64_t ranks) {
  if (size <= block || block == 1)
    return block;
  int64_t part = size % ranks == 0 ? std::gcd(block, size / ranks) : block;
  return part >= std::min(kLeastPart, block) ? part : block;
}

/// States the parts of blocks. Returns false where shards are made of whole blocks.
static bool refine(nn::DequantizeOp op, int64_t ranks) {
  SmallVector<int64_t> block = op.getBlockSizes(), parts = block;
  for (auto [part, size] : llvm::zip_equal(parts, op.getCodeShape()))
    part = getPart(size, part, ranks);
  if (parts == block || op.getParts())
    return false;
  op.setPartsAttr(
      Builder(op).getI64ArrayAttr(ArrayRef(parts).take_back(op.getBlock().size())));
  return true;
}

namespace {
struct RefineBlocksPass : meshwright::impl::RefineBlocksPassBase<RefineBlocksPass> {
  void runOnOperation() override {
    for (func::FuncOp func : getGlobalFunctions(getOperation())) {
      int64_t count = llvm::count_if(func.front().getOps<nn::DequantizeOp>(), [&](auto op) {
        return refine(op, getRanks(getOperation(), /*ofExperts=*/op.getCodeShape().size() > 2));
      });
      if (count > 0)
        dist::DistDialect::getDecisionLog(func.getContext())
            .add("refine-blocks", Outcome::Applied, func.getLoc(),
                 llvm::formatv("shards of {0} stored weights are made of parts of blocks", count)
                     .str(),
                 {{"weights", double(count)}});
    }
  }
};
} // namespace

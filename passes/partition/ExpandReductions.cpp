//===- ExpandReductions.cpp - sharded rows by maxima and sums -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/Stages.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/partition/Passes.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_EXPANDREDUCTIONSPASS
#include "meshwright/passes/partition/Passes.h.inc"
} // namespace meshwright

static AxisList getAxes(DimShardingAttr dim, MeshAttr mesh) {
  AxisList axes;
  for (FactorShardingAttr factor : dim.getFactors())
    for (AxisRefAttr axis : factor.getAxes())
      axes.push_back(getAxis(axis, mesh));
  return axes;
}

/// Returns true if all of these axes shard dimensions of the result that the op does not read whole.
static bool shardsResult(Operation *op, const AxisList &axes, MeshAttr mesh) {
  FactorRule rule = cast<ShardingRuleOpInterface>(op).getFactorRule();
  AxisList own;
  for (auto [dim, factors] : llvm::zip_equal(getShardingAttr(op->getResult(0)).getDims(), rule.results[0])) {
    bool isRead = llvm::any_of(factors, [&](int factor) {
      return rule.factors[factor].kind == FactorKind::Expandable;
    });
    if (!isRead)
      own.append(getAxes(dim, mesh));
  }
  return llvm::all_of(axes, [&](const Axis &axis) { return llvm::is_contained(own, axis); });
}

/// Compares the bytes of the maxima and sums of an op over a sharded dimension with those of
/// gathering the dimension, and logs the decision.
static bool shouldExpand(ExpandOpInterface op, MeshAttr mesh) {
  Value input = op->getOperand(0);
  ShardingAttr sharding = getShardingAttr(input);
  SmallVector<int64_t, 2> dims = op.getExpandedDims();
  // Maxima and sums can leave out padding, which is there on one rank, too.
  auto hasRuntimeSize = [&](int64_t d) {
    return llvm::any_of(sharding.getDims()[d].getFactors(), [](FactorShardingAttr factor) {
      return bool(factor.getRuntimeSize());
    });
  };
  if (llvm::any_of(dims, hasRuntimeSize))
    return true;
  AxisList axes;
  int64_t rows = 1, columns = 1;
  for (auto [d, dim] : llvm::enumerate(sharding.getDims())) {
    AxisList own = getAxes(dim, mesh);
    int64_t local = llvm::divideCeil(typeOf(input).getDimSize(d), getNumShards(own));
    bool isRead = llvm::is_contained(dims, int64_t(d));
    (isRead ? columns : rows) *= local;
    if (isRead)
      axes.append(own.begin(), own.end());
  }
  int64_t ranks = getNumShards(axes);
  if (ranks == 1)
    return false;
  int64_t element = getElementBytes(typeOf(input).getElementType());
  // Where the result has the same axes on other dimensions, an exchange moves each row to its rank.
  bool exchanges = shardsResult(op, axes, mesh);
  int64_t gathered = exchanges
                         ? getBytesSent(CollectiveKind::AllToAll, ranks, rows * columns * element)
                         : getBytesSent(CollectiveKind::AllGather, ranks, rows * columns * ranks * element);
  // Sums are at least as wide as f32.
  int64_t number = std::max<int64_t>(element, 4);
  int64_t combined = op.getNumStatistics() *
                     getBytesSent(CollectiveKind::AllReduce, ranks, rows * number);
  // The schedule expands an op without a kernel that stays here.
  bool expands = combined < gathered || (op.needsExpansion() && !exchanges);
  DistDialect::getDecisionLog(op->getContext())
      .add("expand-reductions", expands ? Outcome::Applied : Outcome::Declined, op->getLoc(),
           llvm::formatv("{0} over a dimension on {1} ranks: its {2} maxima and sums of a row send "
                         "{3} bytes, {5} {4}",
                         op->getName(), ranks, op.getNumStatistics(), combined, gathered,
                         exchanges ? "an exchange" : "a gather")
               .str(),
           {{"ranks", double(ranks)},
            {"bytes_combined", double(combined)},
            {"bytes_gathered", double(gathered)}});
  return expands;
}

/// The sharding of a result that follows from the operands: each dimension has the sharding of
/// an operand's dimension of the same factors. An axis shards the first dimension that has it.
static ShardingAttr deriveSharding(Operation *op, unsigned result, MeshAttr mesh,
                                   FlatSymbolRefAttr symbol) {
  FactorRule rule = cast<ShardingRuleOpInterface>(op).getFactorRule();
  auto whole = DimShardingAttr::get(op->getContext(), {}, false);
  SmallVector<DimShardingAttr> dims;
  AxisList used;
  for (const FactorRule::DimFactors &factors : rule.results[result]) {
    DimShardingAttr own = whole;
    AxisList axes;
    for (auto [operand, operandDims] : llvm::zip_equal(op->getOperands(), rule.operands))
      for (auto [d, other] : llvm::enumerate(operandDims)) {
        if (factors.empty() || other != factors || !axes.empty())
          continue;
        DimShardingAttr dim = getShardingAttr(operand).getDims()[d];
        AxisList given = getAxes(dim, mesh);
        if (given.empty() || anyOverlap(used, given))
          continue;
        own = dim;
        axes = given;
      }
    used.append(axes.begin(), axes.end());
    dims.push_back(own);
  }
  return ShardingAttr::get(op->getContext(), symbol, dims, {}, ReductionKind::Sum);
}

/// Replaces an op by its expansion. Returns false if it has none.
static bool expand(ExpandOpInterface op, MeshAttr mesh, FlatSymbolRefAttr symbol) {
  OpBuilder builder(op);
  Operation *before = op->getPrevNode();
  Value result = op.expand(builder);
  if (!result)
    return false;
  Attribute stage = op->getAttr(nn::NnDialect::kStageAttr);
  Operation *made = before ? before->getNextNode() : &op->getBlock()->front();
  for (; made != op; made = made->getNextNode()) {
    if (stage)
      made->setAttr(nn::NnDialect::kStageAttr, stage);
    for (auto [i, value] : llvm::enumerate(made->getResults()))
      setShardingAttr(value, deriveSharding(made, i, mesh, symbol));
  }
  setShardingAttr(result, getShardingAttr(op->getResult(0)));
  if (Attribute id = op->getAttr(nn::NnDialect::kIdAttr))
    result.getDefiningOp()->setAttr(nn::NnDialect::kIdAttr, id);
  op->getResult(0).replaceAllUsesWith(result);
  op->erase();
  return true;
}

namespace {
struct ExpandReductionsPass
    : meshwright::impl::ExpandReductionsPassBase<ExpandReductionsPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    MeshAttr mesh = meshOp->getMesh();
    auto symbol = FlatSymbolRefAttr::get(*meshOp);
    bool changed = false;
    for (func::FuncOp func : getGlobalFunctions(module)) {
      SmallVector<ExpandOpInterface> found;
      func.walk([&](ExpandOpInterface op) { found.push_back(op); });
      for (ExpandOpInterface op : found) {
        auto isLaid = [](Value value) { return bool(getShardingAttr(value)); };
        if (llvm::all_of(op->getOperands(), isLaid) && llvm::all_of(op->getResults(), isLaid) &&
            shouldExpand(op, mesh))
          changed |= expand(op, mesh, symbol);
      }
    }
    // The partitioner needs the factors of the same ops next.
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

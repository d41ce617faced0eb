//===- AnnotateDealtPages.cpp - shard caches by sequence ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/passes/annotate/AxisParts.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATEDEALTPAGESPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The sharding with all dimensions open.
static ShardingAttr openDims(ShardingAttr closed) {
  SmallVector<DimShardingAttr> dims;
  for (DimShardingAttr dim : closed.getDims())
    dims.push_back(DimShardingAttr::get(dim.getContext(), dim.getFactors(), /*isOpen=*/true));
  return ShardingAttr::get(closed.getContext(), closed.getMesh(), dims, closed.getUnreduced(),
                           closed.getReduction());
}

/// Shards the class over the axes in the states that have it. Their other dimensions stay open.
static LogicalResult shardStates(const FactorAnalysis &factors, MeshOp meshOp, int cls,
                                 const AxisList &axes) {
  for (const SharedValue &shared : factors.getSharedValues()) {
    nn::StateOp state = shared.state;
    if (!state)
      continue;
    Value value = shared.getFirst();
    ArrayRef<FactorClasses> classes = factors.getClasses(value);
    ValueSharding sharding = ValueSharding::getReplicated(classes);
    if (auto stated = state->getAttrOfType<ShardingAttr>(DistDialect::kShardingAttr)) {
      auto read = readSharding(stated, value, factors, meshOp.getMesh(),
                               [&] { return emitError(state.getLoc()); });
      if (failed(read))
        return failure();
      sharding = *read;
    }
    bool found = false;
    for (auto [d, own] : llvm::enumerate(classes))
      for (auto [other, given] : llvm::zip_equal(own, sharding.dims[d]))
        if (other == cls && !anyOverlap(sharding.getAxes(), axes)) {
          given = axes;
          found = true;
        }
    if (!found)
      continue;
    ShardingAttr closed =
        writeSharding(sharding, value, factors, meshOp.getMesh(), FlatSymbolRefAttr::get(meshOp));
    state->setAttr(DistDialect::kShardingAttr, openDims(closed));
  }
  return success();
}

/// Each rank attends to its own range: the results have the axes on the ranges, and not on heads.
static void shardResults(nn::PagedAttentionOp op, const FactorAnalysis &factors, MeshOp meshOp, int cls,
                         const AxisList &axes) {
  for (Value value : op->getResults()) {
    ArrayRef<FactorClasses> classes = factors.getClasses(value);
    ValueSharding sharding = ValueSharding::getReplicated(classes);
    for (auto [d, own] : llvm::enumerate(classes))
      for (auto [other, given] : llvm::zip_equal(own, sharding.dims[d]))
        if (other == cls)
          given = axes;
    setShardingAttr(value, openDims(writeSharding(sharding, value, factors, meshOp.getMesh(),
                                                  FlatSymbolRefAttr::get(meshOp))));
  }
}

namespace {
struct AnnotateDealtPagesPass
    : meshwright::impl::AnnotateDealtPagesPassBase<AnnotateDealtPagesPass> {
  using AnnotateDealtPagesPassBase::AnnotateDealtPagesPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<MeshOp> meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    RoleAxes role(AxisRole::Tensor, AxisChoice());
    AxisList axes = role.get(*meshOp, getStageMeshes(*meshOp).front());
    for (func::FuncOp func : getGlobalFunctions(module))
      if (failed(run(func, *meshOp, axes)))
        return signalPassFailure();
    markAllAnalysesPreserved();
  }

private:
  LogicalResult run(func::FuncOp func, MeshOp meshOp, const AxisList &axes) {
    llvm::SmallSetVector<int, 2> seen;
    for (auto op : func.getOps<nn::PagedAttentionOp>()) {
      if (!op.getDeals())
        continue;
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return failure();
      int64_t ranks = 1, deal = *op.getDeal();
      for (const Axis &axis : axes)
        ranks *= axis.size;
      // The ranks of a group are the minor part of the axes.
      std::optional<AxisList> own =
          ranks % deal == 0 ? getAxisPart(axes, ranks / deal, deal) : std::nullopt;
      const FactorClasses &classes = factors->getClasses(op.getDeals())[0];
      if (!own || classes.size() != 1)
        return op.emitOpError() << "deals pages over " << deal << " ranks: expected a part of the "
                                << ranks << " tensor-parallel ones";
      shardResults(op, *factors, meshOp, classes.front(), *own);
      if (!seen.insert(classes.front()))
        continue;
      if (failed(shardStates(*factors, meshOp, classes.front(), *own)))
        return failure();
      DistDialect::getDecisionLog(&getContext())
          .add("annotate-dealt-pages", Outcome::Applied, op.getLoc(),
               llvm::formatv("pages are dealt over {0} ranks", deal).str(),
               {{"ranks", double(deal)}});
    }
    return success();
  }
};
} // namespace

//===- Partition.cpp - global program to SPMD program ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/passes/partition/Partitioner.h"
#include "meshwright/passes/partition/Passes.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_PARTITIONPASS
#include "meshwright/passes/partition/Passes.h.inc"
} // namespace meshwright

/// States on each `nn.state` the layout that its places in the functions have.
static LogicalResult writeStates(ModuleOp module, MeshOp meshOp) {
  llvm::DenseMap<StringAttr, nn::StateOp> states;
  for (auto state : module.getOps<nn::StateOp>())
    states[state.getSymNameAttr()] = state;
  if (states.empty())
    return success();
  auto symbol = FlatSymbolRefAttr::get(meshOp);
  auto write = [&](DictionaryAttr attrs, Type type, Location loc) -> LogicalResult {
    auto name = attrs ? attrs.getAs<StringAttr>(nn::NnDialect::kStateAttr) : StringAttr();
    nn::StateOp state = name ? states.lookup(name) : nn::StateOp();
    if (!state)
      return success();
    auto sharding = attrs.getAs<ShardingAttr>(DistDialect::kShardingAttr);
    auto layout = getLayout(sharding, meshOp.getMesh(), state.getMemoryType().getShape(),
                            cast<RankedTensorType>(type).getShape(), Padding::Zero,
                            [&] { return emitError(loc); });
    if (failed(layout))
      return failure();
    state->setAttr(DistDialect::kShardingAttr,
                   getExactSharding(*layout, symbol, meshOp.getMesh()));
    states.erase(name);
    return success();
  };
  for (auto func : module.getOps<func::FuncOp>()) {
    if (func.isExternal() || getSpmdMeshSymbol(func) != symbol)
      continue;
    for (auto [i, type] : llvm::enumerate(func.getArgumentTypes()))
      if (failed(write(func.getArgAttrDict(i), type, func.getLoc())))
        return failure();
    for (auto [i, type] : llvm::enumerate(func.getResultTypes()))
      if (failed(write(func.getResultAttrDict(i), type, func.getLoc())))
        return failure();
  }
  return success();
}

LogicalResult Partitioner::partitionInto(Operation *op, Block &local) {
  Operation *before = local.empty() ? nullptr : &local.back();
  if (failed(partition(op)))
    return failure();
  if (auto mark = op->getAttr(nn::NnDialect::kBackwardAttr))
    for (Operation &made : llvm::make_range(
             before ? std::next(before->getIterator()) : local.begin(), local.end()))
      if (made.getNumOperands() > 0)
        made.setAttr(nn::NnDialect::kBackwardAttr, mark);
  return success();
}

namespace {
struct PartitionPass : meshwright::impl::PartitionPassBase<PartitionPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto mesh = getOnlyMesh(module);
    if (failed(mesh))
      return signalPassFailure();
    clearRoles(*mesh);
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    auto &factors = SharedFactorAnalysis::get(getAnalysisManager(), functions);
    if (failed(factors))
      return signalPassFailure();
    PaddedSizes sizes(factors->getNumClasses());
    std::deque<Partitioner> partitioners;
    for (func::FuncOp func : functions) {
      partitioners.emplace_back(func, mesh->getMesh(), FlatSymbolRefAttr::get(*mesh), *factors);
      if (failed(partitioners.back().prepare(sizes)))
        return signalPassFailure();
    }
    for (Partitioner &partitioner : partitioners)
      if (failed(partitioner.run(sizes)))
        return signalPassFailure();
    if (failed(writeStates(module, *mesh)))
      return signalPassFailure();
    // The placement has not been computed before, since the functions had none.
    for (func::FuncOp func : functions)
      if (failed(getChildAnalysis<SharedPlacementAnalysis>(func).placement))
        return signalPassFailure();
    markAnalysesPreserved<SharedPlacementAnalysis>();
  }
};
} // namespace

//===- FoldEncoder.cpp - a stage over the axes of another -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/AnnotateTensorParallel.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_FOLDENCODERPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

struct FoldEncoderPass : meshwright::impl::FoldEncoderPassBase<FoldEncoderPass> {
  using FoldEncoderPassBase::FoldEncoderPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    FailureOr<AxisList> axes = getGroup(*meshOp);
    if (failed(axes))
      return signalPassFailure();
    bool found = false;
    SmallVector<StringRef> known;
    for (func::FuncOp func : getGlobalFunctions(module)) {
      SmallVector<StringRef> stages = getStages(func);
      known.append(stages.begin(), stages.end());
      if (!llvm::is_contained(stages, stage))
        continue;
      found = true;
      if (failed(fold(func, *meshOp, *axes)))
        return signalPassFailure();
    }
    if (!found) {
      InFlightDiagnostic diag = module.emitError() << "fold names stage '" << stage << "', ";
      if (known.empty())
        diag << "but the program was not composed of stages";
      else
        diag << "expected one of " << llvm::join(known, ", ");
      return signalPassFailure();
    }
  }

private:
  FailureOr<AxisList> getGroup(MeshOp meshOp);
  LogicalResult fold(func::FuncOp func, MeshOp meshOp, ArrayRef<Axis> axes);
  LogicalResult splitBatch(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
                           ArrayRef<Axis> axes);
  void log(Outcome outcome, Location loc, const std::string &message) {
    DistDialect::getDecisionLog(&getContext()).add("fold-encoder", outcome, loc, message);
  }
};

/// The axes of the mode, in the mesh's order; those of size 1 left out.
FailureOr<AxisList> FoldEncoderPass::getGroup(MeshOp meshOp) {
  MeshAttr mesh = meshOp.getMesh();
  bool both = mode == "sp" || mode == "batch";
  if (!both && mode != "ulysses" && mode != "ring" && mode != "replica")
    return meshOp->emitError() << "fold mode is '" << mode << "' for stage '" << stage
                               << "', expected sp, ulysses, ring, replica or batch";
  SmallVector<StringRef> names;
  if (both || mode == "ring")
    names.push_back(ring);
  if (both || mode == "ulysses")
    names.push_back(ulysses);
  llvm::erase_if(names, [](StringRef name) { return name.empty(); });
  if (names.empty() && mode != "replica")
    return meshOp->emitError() << "fold mode '" << mode << "' for stage '" << stage
                               << "' needs the axis that context-parallel names";
  for (StringRef name : names)
    if (mesh.getAxisIndex(name) < 0)
      return meshOp->emitOpError() << "has no axis \"" << name << "\" to fold over";
  AxisList axes;
  for (auto [i, axis] : llvm::enumerate(mesh.getAxes())) {
    bool isWanted =
        mode == "replica" ? axis.getName() != data : llvm::is_contained(names, axis.getName());
    if (isWanted && axis.getSize() > 1)
      axes.push_back({int(i), 1, axis.getSize()});
  }
  return axes;
}

LogicalResult FoldEncoderPass::fold(func::FuncOp func, MeshOp meshOp, ArrayRef<Axis> axes) {
  if (axes.empty()) {
    log(Outcome::Declined, func.getLoc(),
        llvm::formatv("stage '{0}' is not folded by '{1}': the group has one rank", stage, mode));
    return success();
  }
  auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
  if (failed(factors))
    return failure();
  if (mode == "batch")
    return splitBatch(func, *factors, meshOp, axes);
  bool rewritten = false;
  StageFilter stages;
  stages.only = {stage};
  if (failed(annotateTensorParallel(func, *factors, meshOp, axes, stages, rewritten)))
    return failure();
  log(Outcome::Applied, func.getLoc(),
      llvm::formatv("stage '{0}' is folded over {1}, {2} ranks", stage,
                    toString(axes, meshOp.getMesh()), getNumShards(axes)));
  return success();
}

/// The batch is dimension 0 of what the stage's first input has there.
LogicalResult FoldEncoderPass::splitBatch(func::FuncOp func, const FactorAnalysis &factors,
                                          MeshOp meshOp, ArrayRef<Axis> axes) {
  MeshAttr mesh = meshOp.getMesh();
  auto symbol = FlatSymbolRefAttr::get(meshOp);
  int leaf = -1;
  bool isFirst = true;
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments()) {
    bool isOwn = llvm::any_of(arg.getUsers(), [&](Operation *op) { return getStage(op) == stage; });
    if (!func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) || !isOwn)
      continue;
    ArrayRef<FactorAnalysis::Leaves> leaves = factors.getLeaves(arg);
    int own = leaves.empty() || leaves[0].empty() ? -1 : leaves[0].front();
    if (isFirst)
      leaf = own;
    isFirst = false;
    if (own < 0 || own != leaf)
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(leaves);
    if (ShardingAttr attr = getShardingAttr(arg)) {
      auto given = readSharding(attr, arg, factors, mesh, [&] { return emitError(arg.getLoc()); });
      if (failed(given))
        return failure();
      sharding = std::move(*given);
    }
    sharding.dims[0][0].append(axes.begin(), axes.end());
    attrs[arg.getArgNumber()] = writeSharding(sharding, arg, factors, mesh, symbol);
  }
  if (leaf < 0) {
    log(Outcome::Declined, func.getLoc(),
        llvm::formatv("stage '{0}' has a batch of one, which is not split over {1}: every rank "
                      "computes all of it; a batch of {2} would be split",
                      stage, toString(axes, mesh), getNumShards(axes)));
    return success();
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
  // Other stages read whole batches.
  OpBuilder builder(func.getContext());
  for (Operation &op : llvm::make_early_inc_range(func.getBody().front().without_terminator())) {
    if (getStage(&op) != stage)
      continue;
    for (Value result : op.getResults()) {
      auto isOther = [&](OpOperand &use) { return getStage(use.getOwner()) != stage; };
      if (llvm::none_of(result.getUses(), isOther))
        continue;
      builder.setInsertionPointAfter(&op);
      ValueSharding whole = ValueSharding::getReplicated(factors.getLeaves(result));
      Value constrained = ConstrainOp::create(builder, op.getLoc(), result,
                                              writeSharding(whole, result, factors, mesh, symbol));
      constrained.getDefiningOp()->setAttr(kStageAttr, builder.getStringAttr(stage));
      result.replaceUsesWithIf(constrained, [&](OpOperand &use) {
        return isOther(use) && use.getOwner() != constrained.getDefiningOp();
      });
    }
  }
  log(Outcome::Applied, func.getLoc(),
      llvm::formatv("the batch of stage '{0}' is split over {1}, {2} ranks, and its weights are "
                    "whole on each",
                    stage, toString(axes, mesh), getNumShards(axes)));
  return success();
}

} // namespace

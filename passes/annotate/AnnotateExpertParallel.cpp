//===- AnnotateExpertParallel.cpp - split experts over axes ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/lib/Weights/Weights.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATEEXPERTPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// Splits the experts of a stage, or of a whole program.
class ExpertParallel {
public:
  ExpertParallel(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
                 const StageMesh &view, const RoleAxes &role)
      : func(func), factors(factors), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), stage(view.stage), names(role.toString(view)),
        axes(role.get(meshOp, view)) {}

  LogicalResult run() {
    if (axes.empty())
      return success();
    for (auto product : func.getBody().front().getOps<nn::GroupedLinearOp>())
      if ((stage.empty() || getStage(product) == stage) && failed(add(product)))
        return failure();
    annotate();
    return success();
  }

private:
  /// Notes the classes of the experts of a product.
  LogicalResult add(nn::GroupedLinearOp product);
  void annotate();

  func::FuncOp func;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  StringRef stage;
  /// The names of the axes, for messages.
  std::string names;
  AxisList axes;
  llvm::SetVector<int> experts;
};

} // namespace

LogicalResult ExpertParallel::add(nn::GroupedLinearOp product) {
  int64_t count = product.getWeight().getType().getDimSize(0), ranks = getNumShards(axes);
  if (count < ranks)
    return product.emitError() << "expert-parallel: expected at most " << count << " ranks for "
                               << count << " experts, got " << ranks << " of " << names;
  // Of experts that share rows, their groups.
  for (int cls : ArrayRef(factors.getClasses(product.getWeight())[0]).take_front())
    if (experts.insert(cls))
      DistDialect::getDecisionLog(func.getContext())
          .add("annotate-expert-parallel", Outcome::Applied, product.getLoc(),
               llvm::formatv("{0} experts over {1}: {2} on each of {3} ranks", count, names,
                             llvm::divideCeil(count, ranks), ranks)
                   .str(),
               {{"experts", double(count)}, {"ranks", double(ranks)}});
  return success();
}

/// Leaves the dimensions that are not sharded to later policies.
static ShardingAttr withOpenDims(ShardingAttr sharding) {
  MLIRContext *context = sharding.getContext();
  SmallVector<DimShardingAttr> dims;
  for (DimShardingAttr dim : sharding.getDims()) {
    bool isSharded = llvm::any_of(
        dim.getFactors(), [](FactorShardingAttr factor) { return !factor.getAxes().empty(); });
    dims.push_back(DimShardingAttr::get(context, dim.getFactors(), !isSharded));
  }
  return ShardingAttr::get(context, sharding.getMesh(), dims, sharding.getUnreduced(),
                           sharding.getReduction());
}

void ExpertParallel::annotate() {
  SmallVector<Attribute> attrs(func.getNumArguments());
  WeightFinder weights(func);
  for (BlockArgument arg : func.getArguments()) {
    if (!weights.find(arg) || getShardingAttr(arg) || arg.use_empty())
      continue;
    ValueSharding sharding = ValueSharding::getReplicated(factors.getClasses(arg));
    for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(arg), sharding.dims))
      for (auto [cls, own] : llvm::zip_equal(classes, dim))
        if (experts.contains(cls))
          own = axes;
    if (!sharding.isReplicated())
      attrs[arg.getArgNumber()] =
          withOpenDims(writeSharding(sharding, arg, factors, mesh, symbol));
  }
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
}

namespace {
struct AnnotateExpertParallelPass
    : meshwright::impl::AnnotateExpertParallelPassBase<AnnotateExpertParallelPass> {
  using AnnotateExpertParallelPassBase::AnnotateExpertParallelPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    RoleAxes role(AxisRole::Expert, axis);
    if (failed(role.check(*meshOp)))
      return signalPassFailure();
    for (func::FuncOp func : getGlobalFunctions(module)) {
      if (load != 1)
        func->setAttr(DistDialect::kRowLoadAttr, Builder(&getContext()).getF64FloatAttr(load));
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      for (const StageMesh &view : getStageMeshes(*meshOp))
        if (failed(ExpertParallel(func, *factors, *meshOp, view, role).run()))
          return signalPassFailure();
    }
    // Attributes alone have changed.
    markAllAnalysesPreserved();
  }
};
} // namespace

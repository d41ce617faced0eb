//===- AnnotateDataParallel.cpp - split the batch over axes --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Batch.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace meshwright {
#define GEN_PASS_DEF_ANNOTATEDATAPARALLELPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

namespace {

/// Splits the batch of a stage, or of a whole program, over axes.
class DataParallel {
public:
  DataParallel(func::FuncOp func, const FactorAnalysis &factors, MeshOp meshOp,
               const StageMesh &view, const RoleAxes &role)
      : func(func), factors(factors), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), stage(view.stage), names(role.toString(view)),
        axes(role.get(meshOp, view)) {}

  /// Shards the inputs that have no sharding yet.
  void annotateInputs();
  /// States the layouts that values of other stages have in this one.
  void constrainCrossings();

private:
  bool isInput(BlockArgument arg);
  ValueSharding split(Value value);
  void report(Location loc);

  func::FuncOp func;
  const FactorAnalysis &factors;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  StringRef stage;
  /// The names of the axes, for messages.
  std::string names;
  AxisList axes;
  /// The batch of the stage's inputs, which are inputs of the program or results of another stage.
  nn::BatchRule rule;
  bool isReported = false;
};

void DataParallel::report(Location loc) {
  int64_t shards = getNumShards(axes);
  if (shards == 1)
    return;
  int64_t batch = rule.getSize();
  DecisionLog &log = DistDialect::getDecisionLog(func.getContext());
  std::string of = stage.empty() ? "" : " of stage '" + stage.str() + "'";
  bool isSplit = batch > 1;
  std::string text =
      isSplit
          ? llvm::formatv("a batch of {0}{1} is split over {2} ranks of {3}{4}", batch, of,
                          shards, names,
                          batch % shards
                              ? llvm::formatv(", padded to {0}", llvm::alignTo(batch, shards)).str()
                              : std::string())
                .str()
          : llvm::formatv("a batch of {0}{1} is not split over {2} ranks of {3}: each "
                          "computes all of it; a batch of at least {2} would be split",
                          batch, of, shards, names)
                .str();
  log.add("annotate-data-parallel", isSplit ? Outcome::Applied : Outcome::Declined, loc, text,
          {{"batch", double(batch)}, {"ranks", double(shards)}});
}

ValueSharding DataParallel::split(Value value) {
  ValueSharding sharding = ValueSharding::getReplicated(factors.getClasses(value));
  ArrayRef<int64_t> shape = cast<RankedTensorType>(value.getType()).getShape();
  auto arg = dyn_cast<BlockArgument>(value);
  std::optional<bool> stated = arg ? nn::getStatedBatch(func, arg.getArgNumber()) : std::nullopt;
  if (!rule.hasInputs())
    rule.add(shape, stated);
  if (!std::exchange(isReported, true))
    report(value.getLoc());
  // A dimension of size 1 has no class, as it may broadcast.
  if (!axes.empty() && rule.isBatch(shape, stated) && !sharding.dims[0].empty())
    sharding.dims[0][0] = axes;
  return sharding;
}

/// Returns true for an input of the program that is the stage's own.
bool DataParallel::isInput(BlockArgument arg) {
  return func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) &&
         (stage.empty() || getStage(arg) == stage);
}

void DataParallel::annotateInputs() {
  SmallVector<Attribute> attrs(func.getNumArguments());
  for (BlockArgument arg : func.getArguments())
    if (isInput(arg))
      rule.add(cast<RankedTensorType>(arg.getType()).getShape(),
               nn::getStatedBatch(func, arg.getArgNumber()));
  for (BlockArgument arg : func.getArguments())
    // An input with a sharding keeps it.
    if (isInput(arg) && !getShardingAttr(arg))
      attrs[arg.getArgNumber()] = writeSharding(split(arg), arg, factors, mesh, symbol);
  setArgumentAttrs(func, DistDialect::kShardingAttr, attrs);
}

void DataParallel::constrainCrossings() {
  OpBuilder builder(func.getContext());
  Block &block = func.getBody().front();
  auto constrain = [&](Value value) {
    auto isOwn = [&](OpOperand &use) { return getStage(use.getOwner()) == stage; };
    if (llvm::none_of(value.getUses(), isOwn))
      return;
    Value moved = ConstrainOp::create(builder, value.getLoc(), value,
                                      writeSharding(split(value), value, factors, mesh, symbol));
    moved.getDefiningOp()->setAttr(nn::NnDialect::kStageAttr, builder.getStringAttr(stage));
    value.replaceUsesWithIf(moved, [&](OpOperand &use) {
      return isOwn(use) && use.getOwner() != moved.getDefiningOp();
    });
  };
  builder.setInsertionPointToStart(&block);
  for (BlockArgument arg : block.getArguments())
    if (func.getArgAttr(arg.getArgNumber(), nn::NnDialect::kInputAttr) && getStage(arg) != stage)
      constrain(arg);
  for (Operation &op : llvm::make_early_inc_range(block.without_terminator())) {
    if (getStage(&op) == stage)
      continue;
    builder.setInsertionPointAfter(&op);
    for (Value result : op.getResults())
      constrain(result);
  }
}

struct AnnotateDataParallelPass
    : meshwright::impl::AnnotateDataParallelPassBase<AnnotateDataParallelPass> {
  using AnnotateDataParallelPassBase::AnnotateDataParallelPassBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    RoleAxes role(AxisRole::Data, axis);
    if (!optional && failed(role.check(*meshOp)))
      return signalPassFailure();
    bool hasStages = hasStageMeshes(*meshOp);
    for (func::FuncOp func : getGlobalFunctions(module)) {
      auto &factors = getChildAnalysis<SharedFactorAnalysis>(func).factors;
      if (failed(factors))
        return signalPassFailure();
      SmallVector<DataParallel, 2> stages;
      for (const StageMesh &view : getStageMeshes(*meshOp)) {
        stages.emplace_back(func, *factors, *meshOp, view, role);
        stages.back().annotateInputs();
      }
      // The analysis knows the operands of the new constraints, but not their results.
      // Each stage asks for each value once.
      if (hasStages)
        for (DataParallel &stage : stages)
          stage.constrainCrossings();
    }
    // Without stages the pass changes attributes only, which propagation reads and verifies.
    if (!hasStages)
      markAllAnalysesPreserved();
  }
};

} // namespace

//===- SaveShards.cpp - saved values in shards ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/recompute/ForwardPass.h"
#include "meshwright/passes/recompute/Passes.h"
#include "meshwright/passes/recompute/SavedShards.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_SAVESHARDSPASS
#include "meshwright/passes/recompute/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

std::optional<SavedShards> meshwright::getSavedShards(Value value,
                                                      const PlacementAnalysis &placement) {
  const Layout *layout = placement.lookup(value);
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!layout || !type || !layout->parts.empty())
    return std::nullopt;
  AxisList taken = layout->getShardedAxes();
  SavedShards shards;
  for (auto [i, axis] : llvm::enumerate(placement.getMesh().getAxes()))
    if (Axis whole{int(i), 1, axis.getSize()};
        axis.getSize() > 1 && !anyOverlap(taken, {whole}))
      shards.axes.push_back(whole);
  int64_t ranks = getNumShards(shards.axes);
  if (ranks == 1)
    return std::nullopt;
  // Rows of some experts or tokens cannot be cut out of others.
  int64_t first = nn::getRouted(type) ? 1 + nn::getNumTokenDims(value) : 0;
  for (int64_t d = first; d < type.getRank(); ++d)
    if (type.getDimSize(d) % ranks == 0) {
      shards.dim = d;
      return shards;
    }
  return std::nullopt;
}

namespace {

/// A value that the forward pass makes and the backward pass reads.
struct SavedValue {
  Value value;
  /// Views of it that backward ops read, in the order of the program.
  SmallVector<Operation *> views;
  SmallVector<OpOperand *> reads;
  Operation *first = nullptr;
};

class ShardSaver {
public:
  ShardSaver(func::FuncOp func, const PlacementAnalysis &placement)
      : func(func), pass(func), placement(placement), mesh(getSpmdMesh(func)) {}

  /// Returns the number of values that are kept in shards.
  int64_t run();
  int64_t getSavedBytes() const { return saved; }

private:
  std::optional<SavedValue> find(Value value) const;
  Value findEarlier(const SavedValue &saved) const;
  bool keep(const SavedValue &saved);

  func::FuncOp func;
  ForwardPass pass;
  const PlacementAnalysis &placement;
  MeshAttr mesh;
  int64_t saved = 0;
};

} // namespace

/// Collects the backward reads of a buffer. None if the forward pass needs it until its end, or the
/// backward pass does not read it.
std::optional<SavedValue> ShardSaver::find(Value value) const {
  if (!pass.takesMemory(value) || skipViews(value) != value ||
      pass.isReadFrom(value, pass.getNumber(pass.getFirstBackward())))
    return std::nullopt;
  SavedValue found{value, {}, {}};
  SmallVector<Value> open{value};
  while (!open.empty()) {
    for (OpOperand &use : open.pop_back_val().getUses()) {
      Operation *user = use.getOwner();
      if (pass.isBackward(user)) {
        found.reads.push_back(&use);
        if (!found.first || user->isBeforeInBlock(found.first))
          found.first = user;
      } else if (user->hasTrait<View>() && use.getOperandNumber() == 0) {
        found.views.push_back(user);
        open.push_back(user->getResult(0));
      }
    }
  }
  if (!found.first)
    return std::nullopt;
  llvm::sort(found.views, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  return found;
}

/// A value of the backward pass behind which the first reader runs, so that the gather does, too.
Value ShardSaver::findEarlier(const SavedValue &saved) const {
  for (Value operand : saved.first->getOperands())
    if (Operation *op = operand.getDefiningOp(); op && pass.isBackward(op))
      return operand;
  return {};
}

bool ShardSaver::keep(const SavedValue &found) {
  std::optional<SavedShards> cut = getSavedShards(found.value, placement);
  Value earlier = findEarlier(found);
  if (!cut || !earlier)
    return false;
  Location loc = found.value.getLoc();
  auto type = cast<RankedTensorType>(found.value.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[cut->dim] /= getNumShards(cut->axes);
  OpBuilder builder(func.getContext());
  builder.setInsertionPointAfterValue(found.value);
  ArrayAttr axes = getAxesAttr(func.getContext(), cut->axes, mesh);
  Value shard = SliceOp::create(builder, loc, TypeRange{type.clone(shape)}, found.value, axes,
                                ArrayRef<int64_t>{cut->dim}, /*shift=*/0)
                    ->getResult(0);
  builder.setInsertionPoint(found.first);
  shard = AfterOp::create(builder, loc, shard, earlier);
  Operation *gather = AllGatherOp::create(builder, loc, TypeRange{type}, shard, axes,
                                          ArrayRef<int64_t>{cut->dim}, CollectiveRole::Saved);
  IRMapping whole;
  whole.map(found.value, gather->getResult(0));
  for (Operation *view : found.views)
    builder.clone(*view, whole);
  for (OpOperand *read : found.reads)
    read->set(whole.lookup(read->get()));
  saved += getTensorBytes(type) - getTensorBytes(shard.getType());
  return true;
}

int64_t ShardSaver::run() {
  if (!pass.isTrained())
    return 0;
  int64_t count = 0;
  SmallVector<SavedValue> all;
  for (Operation *op : pass.getOps({0, pass.getNumber(pass.getFirstBackward())}))
    for (Value result : op->getResults())
      if (std::optional<SavedValue> found = find(result))
        all.push_back(std::move(*found));
  for (const SavedValue &found : all)
    count += keep(found);
  return count;
}

namespace {
struct SaveShardsPass : meshwright::impl::SaveShardsPassBase<SaveShardsPass> {
  using SaveShardsPassBase::SaveShardsPassBase;

  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (mode != OnOffAuto::On || !getSpmdMeshSymbol(func) || !func.getBody().hasOneBlock())
      return markAllAnalysesPreserved();
    auto &placement = getAnalysis<SharedPlacementAnalysis>().placement;
    if (failed(placement))
      return signalPassFailure();
    ShardSaver saver(func, *placement);
    int64_t count = saver.run();
    if (!count)
      return markAllAnalysesPreserved();
    DistDialect::getDecisionLog(&getContext())
        .add("save-shards", Outcome::Applied, func.getLoc(),
             llvm::formatv("{0} values that several ranks hold alike are kept in shards for the "
                           "backward pass, and gathered there",
                           count)
                 .str(),
             {{"values", double(count)}, {"saved_bytes", double(saver.getSavedBytes())}});
  }
};
} // namespace

//===- SaveShards.cpp - saved values in shards ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/recompute/ForwardPass.h"
#include "meshwright/passes/recompute/Passes.h"
#include "meshwright/passes/recompute/SavedShards.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/Sequence.h"
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
  /// How it is cut, and a value of the backward pass behind which it is gathered.
  SavedShards cut;
  Value earlier;
  /// The bytes that a rank keeps less, and picoseconds of the gather.
  int64_t bytes = 0, time = 0;
};

/// The values of one function that can be kept in shards.
class ShardSaver {
public:
  ShardSaver(func::FuncOp func, const PlacementAnalysis &placement);

  size_t getNumValues() const { return values.size(); }
  /// The bytes that a rank keeps less, and picoseconds of gathers, if it keeps so many values in shards.
  int64_t getBytes(size_t count) const;
  int64_t getTime(size_t count) const;
  /// Keeps so many values in shards: the first ones save most bytes for each second of their gathers.
  void keep(size_t count);

private:
  std::optional<SavedValue> find(Value value) const;
  Value findEarlier(const SavedValue &saved) const;
  void keep(const SavedValue &saved);

  func::FuncOp func;
  ForwardPass pass;
  const PlacementAnalysis &placement;
  MeshAttr mesh;
  CostModel model;
  /// In the order of the program.
  SmallVector<SavedValue> values;
  /// The numbers of the values, by the bytes that they save for each second, most first.
  SmallVector<size_t> ranked;
};

} // namespace

/// Collects the backward reads of a buffer. None if the forward pass needs it until its end, the backward
/// pass does not read it, or it cannot be cut.
std::optional<SavedValue> ShardSaver::find(Value value) const {
  if (!pass.takesMemory(value) || skipViews(value) != value ||
      pass.isReadFrom(value, pass.getNumber(pass.getFirstBackward())))
    return std::nullopt;
  SavedValue found;
  found.value = value;
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
  std::optional<SavedShards> cut = getSavedShards(value, placement);
  found.earlier = findEarlier(found);
  if (!cut || !found.earlier)
    return std::nullopt;
  found.cut = std::move(*cut);
  llvm::sort(found.views, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  int64_t ranks = getNumShards(found.cut.axes), bytes = getTensorBytes(value.getType());
  found.bytes = bytes - bytes / ranks;
  found.time = model.getTime(found.cut.axes, found.bytes, getSteps(CollectiveKind::AllGather, ranks));
  return found;
}

/// A value of the backward pass behind which the first reader runs, so that the gather does, too.
Value ShardSaver::findEarlier(const SavedValue &saved) const {
  for (Value operand : saved.first->getOperands())
    if (Operation *op = operand.getDefiningOp(); op && pass.isBackward(op))
      return operand;
  return {};
}

ShardSaver::ShardSaver(func::FuncOp func, const PlacementAnalysis &placement)
    : func(func), pass(func), placement(placement), mesh(getSpmdMesh(func)), model(mesh) {
  if (!pass.isTrained())
    return;
  for (Operation *op : pass.getOps({0, pass.getNumber(pass.getFirstBackward())}))
    for (Value result : op->getResults())
      if (std::optional<SavedValue> found = find(result))
        values.push_back(std::move(*found));
  ranked = llvm::to_vector(llvm::seq<size_t>(0, values.size()));
  llvm::sort(ranked, [&](size_t i, size_t j) {
    const SavedValue &a = values[i], &b = values[j];
    return std::pair(double(b.bytes) * double(a.time), i) < std::pair(double(a.bytes) * double(b.time), j);
  });
}

int64_t ShardSaver::getBytes(size_t count) const {
  int64_t bytes = 0;
  for (size_t i : ArrayRef(ranked).take_front(count))
    bytes += values[i].bytes;
  return bytes;
}

int64_t ShardSaver::getTime(size_t count) const {
  int64_t time = 0;
  for (size_t i : ArrayRef(ranked).take_front(count))
    time += values[i].time;
  return time;
}

void ShardSaver::keep(const SavedValue &found) {
  Location loc = found.value.getLoc();
  auto type = cast<RankedTensorType>(found.value.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[found.cut.dim] /= getNumShards(found.cut.axes);
  OpBuilder builder(func.getContext());
  builder.setInsertionPointAfterValue(found.value);
  ArrayAttr axes = getAxesAttr(func.getContext(), found.cut.axes, mesh);
  Value shard = SliceOp::create(builder, loc, TypeRange{type.clone(shape)}, found.value, axes,
                                ArrayRef<int64_t>{found.cut.dim}, /*shift=*/0)
                    ->getResult(0);
  builder.setInsertionPoint(found.first);
  shard = AfterOp::create(builder, loc, shard, found.earlier);
  Operation *gather = AllGatherOp::create(builder, loc, TypeRange{type}, shard, axes,
                                          ArrayRef<int64_t>{found.cut.dim}, CollectiveRole::Saved);
  IRMapping whole;
  whole.map(found.value, gather->getResult(0));
  for (Operation *view : found.views)
    builder.clone(*view, whole);
  for (OpOperand *read : found.reads)
    read->set(whole.lookup(read->get()));
}

void ShardSaver::keep(size_t count) {
  SmallVector<size_t> chosen(ArrayRef<size_t>(ranked).take_front(count));
  llvm::sort(chosen);
  for (size_t i : chosen)
    keep(values[i]);
}

namespace {
struct SaveShardsPass : meshwright::impl::SaveShardsPassBase<SaveShardsPass> {
  using SaveShardsPassBase::SaveShardsPassBase;
  SaveShardsPass(SaveShardsPassOptions options, TryPlan tryPlan)
      : SaveShardsPassBase(std::move(options)), tryPlan(std::move(tryPlan)) {}

  void runOnOperation() override {
    bool changed = false;
    for (auto func : getOperation().getOps<func::FuncOp>()) {
      if (!mayKeep() || !getSpmdMeshSymbol(func) || !func.getBody().hasOneBlock())
        continue;
      auto &placement = getChildAnalysis<SharedPlacementAnalysis>(func).placement;
      if (failed(placement))
        return signalPassFailure();
      ShardSaver saver(func, *placement);
      size_t count = choose(func, saver);
      saver.keep(count);
      changed |= count > 0;
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
  bool mayKeep() const {
    return mode == OnOffAuto::On || (mode == OnOffAuto::Auto && memoryCeiling && tryPlan);
  }
  /// With auto, shards that save less than one part of so many of the arguments are not worth a plan. The ceiling
  /// has no part in it: the least one is that of the same choices.
  static constexpr int64_t kLeastPart = 64;

  size_t choose(func::FuncOp func, const ShardSaver &saver) const;
  std::pair<size_t, StringRef> chooseUnderCeiling(func::FuncOp func, const ShardSaver &saver) const;
  TriedPlan tryWith(func::FuncOp func, size_t count) const;

  TryPlan tryPlan;
};
} // namespace

/// The plan of a copy of the function that keeps so many values in shards.
TriedPlan SaveShardsPass::tryWith(func::FuncOp func, size_t count) const {
  OwningOpRef<ModuleOp> module(func->getParentOfType<ModuleOp>().clone());
  auto copy = module->lookupSymbol<func::FuncOp>(func.getName());
  FailureOr<PlacementAnalysis> placement = PlacementAnalysis::run(copy);
  if (succeeded(placement))
    ShardSaver(copy, *placement).keep(count);
  return tryPlan(copy, memoryCeiling, OnOffAuto::Off);
}

/// The number of values with which the program keeps to the ceiling and takes least time, and why. Of none
/// and all, and of those on the way to the fewest if whole values do not fit.
std::pair<size_t, StringRef> SaveShardsPass::chooseUnderCeiling(func::FuncOp func,
                                                                const ShardSaver &saver) const {
  const size_t all = saver.getNumValues();
  TriedPlan whole = tryPlan(func, memoryCeiling, OnOffAuto::Off);
  if (whole.fits()) {
    if (whole.hidesMost || whole.time <= tryPlan(func, /*ceiling=*/0, OnOffAuto::Off).time)
      return {0, "the program keeps to the memory ceiling"};
    TriedPlan cut = tryWith(func, all);
    if (cut.fits() && cut.time < whole.time)
      return {all, "the step takes less time under the memory ceiling"};
    return {0, "the step would take no less time"};
  }
  TriedPlan cut = tryWith(func, all);
  if (!cut.fits())
    return cut.needed < whole.needed ? std::pair(all, StringRef("the program needs less memory"))
                                     : std::pair(size_t(0), StringRef("the program would need no less memory"));
  // More values need less memory. The order hides more if there is some left.
  size_t low = 1, high = all, best = all;
  for (int64_t least = cut.time; low < high;) {
    size_t middle = (low + high) / 2;
    TriedPlan tried = tryWith(func, middle);
    if (tried.fits() && tried.time <= least) {
      least = tried.time;
      best = middle;
    }
    (tried.fits() ? high : low) = tried.fits() ? middle : middle + 1;
  }
  return {best, "the memory ceiling asks for it"};
}

size_t SaveShardsPass::choose(func::FuncOp func, const ShardSaver &saver) const {
  size_t all = saver.getNumValues(), count = all;
  int64_t arguments = 0;
  for (Type type : func.getArgumentTypes())
    arguments += getTensorBytes(type);
  if (all == 0 || (mode == OnOffAuto::Auto && saver.getBytes(all) < arguments / kLeastPart))
    return 0;
  StringRef why = "the option asks for it";
  if (mode == OnOffAuto::Auto)
    std::tie(count, why) = chooseUnderCeiling(func, saver);
  size_t counted = count ? count : all;
  std::vector<std::pair<std::string, double>> numbers = {{"values", double(counted)},
                                                         {"saved_bytes", double(saver.getBytes(counted))},
                                                         {"gather_seconds", double(saver.getTime(counted)) * 1e-12}};
  if (mode == OnOffAuto::Auto)
    numbers.push_back({"memory_ceiling_bytes", double(memoryCeiling)});
  DistDialect::getDecisionLog(func.getContext())
      .add("save-shards", count ? Outcome::Applied : Outcome::Declined, func.getLoc(),
           llvm::formatv(count ? "{0} values that several ranks hold alike are kept in shards for the backward "
                                 "pass, and gathered there: {1}"
                               : "{0} values that several ranks hold alike are kept whole for the backward pass: {1}",
                         counted, why)
               .str(),
           std::move(numbers));
  return count;
}

std::unique_ptr<Pass> meshwright::createSaveShardsPass(SaveShardsPassOptions options, TryPlan tryPlan) {
  return std::make_unique<SaveShardsPass>(std::move(options), std::move(tryPlan));
}

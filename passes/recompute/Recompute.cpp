//===- Recompute.cpp - compute values again -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Placement/PlacementAnalysis.h"
#include "meshwright/lib/Support/DecisionLog.h"
#include "meshwright/passes/recompute/Passes.h"
#include "meshwright/passes/recompute/Repetition.h"
#include "meshwright/passes/recompute/SavedShards.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_RECOMPUTEPASS
#include "meshwright/passes/recompute/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {

/// How much of each segment is repeated.
enum class Share { None, Cheap, All };

/// The choices of one function.
class Recomputation {
public:
  explicit Recomputation(func::FuncOp func, ForwardPass::KeptBytes keptBytes = nullptr)
      : func(func), pass(func, std::move(keptBytes)), model(dist::getSpmdMesh(func)) {
    if (!pass.isTrained())
      return;
    segments = pass.cut();
    // The backward pass begins with the last one.
    segments.pop_back();
    for (Segment segment : segments)
      plans.push_back({planRepetition(pass, segment, /*cheap=*/true, model),
                       planRepetition(pass, segment, /*cheap=*/false, model)});
  }

  bool isTrained() const { return pass.isTrained(); }
  size_t getNumSegments() const { return plans.size(); }
  std::vector<Share> getAll() const { return std::vector<Share>(plans.size(), Share::All); }
  /// Steps from nothing to all, by bytes for each second: the shares after each step.
  std::vector<std::vector<Share>> getSteps() const;

  /// Returns the sums of ops, bytes and picoseconds of what is repeated.
  Repetition getSum(ArrayRef<Share> shares) const;
  void apply(ArrayRef<Share> shares) const;

private:
  struct Plans {
    std::optional<Repetition> cheap, all;
  };
  const Repetition *find(size_t segment, Share share) const {
    const Plans &own = plans[segment];
    if (share == Share::All && own.all)
      return &*own.all;
    return share != Share::None && own.cheap ? &*own.cheap : nullptr;
  }

  func::FuncOp func;
  ForwardPass pass;
  CostModel model;
  SmallVector<Segment> segments;
  std::vector<Plans> plans;
};

} // namespace

std::vector<std::vector<Share>> Recomputation::getSteps() const {
  struct Step {
    size_t segment;
    Share share;
    int64_t bytes, time;
    double getGain() const { return double(bytes) / double(std::max<int64_t>(time, 1)); }
  };
  std::vector<Step> steps;
  for (auto [i, own] : llvm::enumerate(plans)) {
    Step cheap{i, Share::Cheap, 0, 0}, all{i, Share::All, 0, 0};
    if (own.cheap)
      cheap = {i, Share::Cheap, own.cheap->bytes, own.cheap->time};
    if (own.all)
      all = {i, Share::All, own.all->bytes - cheap.bytes, own.all->time - cheap.time};
    // The rest of a segment comes with its cheap ops if it saves more for each second.
    if (all.bytes > 0 && cheap.bytes > 0 && all.getGain() >= cheap.getGain()) {
      all = {i, Share::All, own.all->bytes, own.all->time};
      cheap.bytes = 0;
    }
    for (const Step &step : {cheap, all})
      if (step.bytes > 0)
        steps.push_back(step);
  }
  llvm::sort(steps, [](const Step &a, const Step &b) {
    return std::tuple(-a.getGain(), a.segment, a.share) <
           std::tuple(-b.getGain(), b.segment, b.share);
  });
  std::vector<std::vector<Share>> shares;
  std::vector<Share> now(plans.size(), Share::None);
  for (const Step &step : steps) {
    now[step.segment] = step.share;
    shares.push_back(now);
  }
  return shares;
}

Repetition Recomputation::getSum(ArrayRef<Share> shares) const {
  Repetition sum;
  for (auto [i, share] : llvm::enumerate(shares))
    if (const Repetition *own = find(i, share)) {
      sum.ops.append(own->ops);
      sum.bytes += own->bytes;
      sum.time += own->time;
    }
  return sum;
}

void Recomputation::apply(ArrayRef<Share> shares) const {
  Operation *begin = pass.getFirstBackward();
  for (size_t i = shares.size(); i-- > 0;)
    if (const Repetition *own = find(i, shares[i])) {
      repeat(pass, *own, begin);
      begin = own->first;
    }
}

/// The bytes of the shards in which values are kept. Null if they are kept whole. `placement` is that of
/// the function, and outlives the result.
static ForwardPass::KeptBytes getShardBytes(OnOffAuto shardSaved,
                                            const FailureOr<PlacementAnalysis> &placement) {
  if (shardSaved != OnOffAuto::On || failed(placement))
    return nullptr;
  return [&placement](Value value) {
    int64_t bytes = getTensorBytes(value.getType());
    std::optional<SavedShards> shards = getSavedShards(value, *placement);
    return shards ? bytes / dist::getNumShards(shards->axes) : bytes;
  };
}

namespace {

struct RecomputePass : meshwright::impl::RecomputePassBase<RecomputePass> {
  using RecomputePassBase::RecomputePassBase;
  RecomputePass(RecomputePassOptions options, TryPlan tryPlan)
      : RecomputePassBase(std::move(options)), tryPlan(std::move(tryPlan)) {}

  void runOnOperation() override;
  /// Returns true if something is repeated.
  bool recompute(func::FuncOp func);
  TriedPlan tryWith(func::FuncOp func, ArrayRef<Share> shares, OnOffAuto saved) const;
  std::vector<Share> choose(func::FuncOp func, const Recomputation &recomputation) const;

  TryPlan tryPlan;
};

} // namespace

/// The plan of a copy of the function in which these shares are repeated.
TriedPlan RecomputePass::tryWith(func::FuncOp func, ArrayRef<Share> shares, OnOffAuto saved) const {
  OwningOpRef<ModuleOp> module(func->getParentOfType<ModuleOp>().clone());
  auto copy = module->lookupSymbol<func::FuncOp>(func.getName());
  FailureOr<PlacementAnalysis> placement = failure();
  if (shardSaved == OnOffAuto::On)
    placement = PlacementAnalysis::run(copy);
  Recomputation(copy, getShardBytes(shardSaved, placement)).apply(shares);
  return tryPlan(copy, memoryCeiling, saved);
}

/// The first shares that keep to the ceiling; all of them if none do.
std::vector<Share> RecomputePass::choose(func::FuncOp func,
                                         const Recomputation &recomputation) const {
  std::vector<Share> none(recomputation.getNumSegments(), Share::None);
  DecisionLog &log = dist::DistDialect::getDecisionLog(func.getContext());
  std::vector<std::vector<Share>> steps = recomputation.getSteps();
  Repetition most = recomputation.getSum(steps.empty() ? none : steps.back());
  std::vector<std::pair<std::string, double>> numbers = {
      {"saved_bytes", double(most.bytes)}, {"seconds", double(most.time) * 1e-12}};
  if (!memoryCeiling) {
    log.add("recompute", Outcome::Declined, func.getLoc(),
            "the backward pass computes nothing again: there is no memory ceiling that asks for it",
            std::move(numbers));
    return none;
  }
  numbers.push_back({"memory_ceiling_bytes", double(memoryCeiling)});
  // No order helps where the arguments alone exceed the ceiling.
  int64_t arguments = 0;
  for (Type type : func.getArgumentTypes())
    arguments += getTensorBytes(type);
  if (arguments > memoryCeiling && !steps.empty())
    return steps.back();
  bool fits = tryPlan(func, memoryCeiling, shardSaved).fits();
  if (fits || steps.empty()) {
    log.add("recompute", Outcome::Declined, func.getLoc(),
            fits ? "the backward pass computes nothing again: the program keeps to the memory ceiling"
                 : "the backward pass computes nothing again: that would save no memory",
            std::move(numbers));
    return none;
  }
  // More steps need less memory.
  size_t low = 0, high = steps.size() - 1;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (tryWith(func, steps[middle], shardSaved).fits())
      high = middle;
    else
      low = middle + 1;
  }
  return steps[low];
}

bool RecomputePass::recompute(func::FuncOp func) {
  const auto &placement = getChildAnalysis<SharedPlacementAnalysis>(func).placement;
  Recomputation recomputation(func, getShardBytes(shardSaved, placement));
  if (!recomputation.isTrained())
    return false;
  std::vector<Share> shares = mode == RecomputeMode::Full
                                  ? recomputation.getAll()
                                  : choose(func, recomputation);
  Repetition sum = recomputation.getSum(shares);
  if (!sum.ops.empty() || mode == RecomputeMode::Full) {
    int64_t count = llvm::count_if(shares, [](Share share) { return share != Share::None; });
    std::vector<std::pair<std::string, double>> numbers = {
        {"saved_bytes", double(sum.bytes)},
        {"seconds", double(sum.time) * 1e-12},
        {"ops", double(sum.ops.size())},
        {"segments", double(recomputation.getNumSegments() + 1)}};
    if (memoryCeiling && mode == RecomputeMode::Auto)
      numbers.push_back({"memory_ceiling_bytes", double(memoryCeiling)});
    dist::DistDialect::getDecisionLog(func.getContext())
        .add("recompute", sum.ops.empty() ? Outcome::Declined : Outcome::Applied, func.getLoc(),
             sum.ops.empty()
                 ? "the backward pass computes nothing again: that would save no memory"
                 : llvm::formatv("the backward pass computes {0} ops of {1} of {2} segments again",
                                 sum.ops.size(), count, recomputation.getNumSegments() + 1)
                       .str(),
             std::move(numbers));
  }
  recomputation.apply(shares);
  return !sum.ops.empty();
}

void RecomputePass::runOnOperation() {
  ModuleOp module = getOperation();
  if (mode == RecomputeMode::Auto && memoryCeiling && !tryPlan) {
    emitError(module.getLoc(), "recompute: mode=auto with a memory ceiling plans schedules, which "
                               "only the pass of a whole pipeline can");
    return signalPassFailure();
  }
  bool changed = false;
  for (auto func : module.getOps<func::FuncOp>())
    if (mode != RecomputeMode::None && dist::getSpmdMeshSymbol(func) && !func.isExternal() &&
        func.getBody().hasOneBlock())
      changed |= recompute(func);
  if (!keepMarks)
    module.walk([](Operation *op) { op->removeAttr(nn::NnDialect::kBackwardAttr); });
  // Marks are no part of a placement.
  if (!changed)
    markAnalysesPreserved<SharedPlacementAnalysis>();
}

std::unique_ptr<Pass> meshwright::createRecomputePass(RecomputePassOptions options, TryPlan tryPlan) {
  return std::make_unique<RecomputePass>(std::move(options), std::move(tryPlan));
}

//===- ShardOptimizer.cpp - shards of what an optimizer keeps -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/train/Passes.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_SHARDOPTIMIZERPASS
#include "meshwright/passes/train/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

/// What a step keeps of one parameter: states of one layout, and the sum of its gradients over
/// microbatches.
struct Kept {
  const SharedValue *parameter;
  SmallVector<const SharedValue *> states;
  const SharedValue *gradients = nullptr;
};

class OptimizerShards {
public:
  OptimizerShards(ModuleOp module, MeshOp meshOp, const FactorAnalysis &factors, AxisList axes,
                  OnOffAuto mode)
      : module(module), meshOp(meshOp), mesh(meshOp.getMesh()),
        symbol(FlatSymbolRefAttr::get(meshOp)), factors(factors), axes(std::move(axes)),
        mode(mode), cost(mesh) {}

  LogicalResult run();

private:
  void collect();
  FailureOr<ValueSharding> getSharding(const SharedValue &value);
  /// Adds axes to one factor. Returns false if no factor is large enough.
  bool split(ValueSharding &sharding, Value value);
  bool pays(const Kept &kept, const ValueSharding &whole);
  void constrain(Value value, ShardingAttr sharding);
  void annotate(const Kept &kept, const ValueSharding &whole, const ValueSharding &sharding);

  ModuleOp module;
  MeshOp meshOp;
  MeshAttr mesh;
  FlatSymbolRefAttr symbol;
  const FactorAnalysis &factors;
  AxisList axes;
  OnOffAuto mode;
  CostModel cost;
  SmallVector<Kept> all;
  /// By the function and the parameter.
  llvm::DenseMap<std::pair<Operation *, StringAttr>, SmallVector<nn::GradientOp, 1>> gradients;
  SignatureAttrs signatures;
};

} // namespace

/// Finds the states of each parameter: an update ties their dimensions to the parameter's.
void OptimizerShards::collect() {
  auto getRole = [](const SharedValue &value) {
    nn::StateOp state = value.state;
    return state ? state.getRole().value_or("") : StringRef();
  };
  llvm::StringMap<size_t> byName;
  for (const SharedValue &value : factors.getSharedValues())
    if (getRole(value) == "parameter" && !value.written.empty()) {
      byName[value.name] = all.size();
      all.push_back({&value, {}});
    }
  for (auto func : module.getOps<func::FuncOp>())
    for (auto gradient : func.getOps<nn::GradientOp>())
      gradients[{func, gradient.getParameterAttr()}].push_back(gradient);
  for (const SharedValue &value : factors.getSharedValues()) {
    StringRef role = getRole(value);
    bool isGradient = role == "gradient";
    if (role != "optimizer" && role != "master" && !isGradient)
      continue;
    // The name ends with that of the parameter, which may have dots itself.
    for (StringRef rest = value.name.getValue().split('.').second; !rest.empty();
         rest = rest.split('.').second) {
      auto found = byName.find(rest);
      if (found == byName.end())
        continue;
      Kept &kept = all[found->second];
      if (factors.getClasses(value.getFirst()) != factors.getClasses(kept.parameter->getFirst()))
        continue;
      if (isGradient)
        kept.gradients = &value;
      else
        kept.states.push_back(&value);
    }
  }
}

FailureOr<ValueSharding> OptimizerShards::getSharding(const SharedValue &value) {
  auto stated = getStatedSharding(value);
  if (failed(stated))
    return failure();
  Value first = value.getFirst();
  if (!*stated)
    return ValueSharding::getReplicated(factors.getClasses(first));
  return readSharding(cast<ShardingAttr>((*stated)->attr), first, factors, mesh,
                      [&] { return emitError((*stated)->place); });
}

bool OptimizerShards::split(ValueSharding &sharding, Value value) {
  AxisList own;
  for (const Axis &axis : axes)
    if (!anyOverlap(sharding.getAxes(), {axis}))
      own.push_back(axis);
  int64_t shards = getNumShards(own);
  if (shards == 1)
    return false;
  AxisList *best = nullptr;
  int64_t bestRest = 0;
  for (auto [classes, dim] : llvm::zip_equal(factors.getClasses(value), sharding.dims))
    for (auto [cls, taken] : llvm::zip_equal(classes, dim)) {
      int64_t size = factors.getSize(cls), parts = shards * getNumShards(taken);
      if (size < parts)
        continue;
      // The least padding; among equals the major factor, whose shards are contiguous.
      int64_t rest = llvm::alignTo(size, parts) - size;
      if (best && rest * 1.0 / size >= bestRest * 1.0 / size)
        continue;
      best = &taken;
      bestRest = rest;
    }
  if (best)
    best->append(own.begin(), own.end());
  return best;
}

/// Returns true if a rank saves more time in the update than the collectives cost that take the
/// place of one all-reduce.
bool OptimizerShards::pays(const Kept &kept, const ValueSharding &whole) {
  if (mode != OnOffAuto::Auto)
    return true;
  auto type = cast<RankedTensorType>(kept.parameter->getFirst().getType());
  int64_t parts = getNumShards(whole.getAxes()), shards = getNumShards(axes);
  int64_t gradient = type.getNumElements() / parts * 4, bytes = getTensorBytes(type) / parts;
  // The gradient is read; the parameter and the states are read and written.
  int64_t moved = gradient + 2 * bytes;
  for (const SharedValue *state : kept.states)
    moved += 2 * getTensorBytes(state->getFirst().getType()) / parts;
  int64_t saved = cost.getMemoryTime(moved - moved / shards);
  auto price = [&](CollectiveKind kind, int64_t size) {
    return cost.getCost(kind, axes, size).time;
  };
  int64_t more = price(CollectiveKind::ReduceScatter, gradient) +
                 price(CollectiveKind::AllGather, bytes) -
                 price(CollectiveKind::AllReduce, gradient);
  return saved > more + cost.getLaunchTime();
}

/// States the layout of a value for all of its users.
void OptimizerShards::constrain(Value value, ShardingAttr sharding) {
  OpBuilder builder(module.getContext());
  builder.setInsertionPointAfterValue(value);
  auto op = ConstrainOp::create(builder, value.getLoc(), value, sharding);
  value.replaceAllUsesExcept(op.getResult(), op);
}

void OptimizerShards::annotate(const Kept &kept, const ValueSharding &whole,
                               const ValueSharding &sharding) {
  auto spell = [&](const ValueSharding &of, const SharedValue &value) {
    return writeSharding(of, value.getFirst(), factors, mesh, symbol);
  };
  ShardingAttr attr = spell(sharding, *kept.parameter);
  for (const SharedValue *state : kept.states)
    setSharding(*state, spell(sharding, *state), signatures);
  // The program reads the whole parameter, and shards of the sum would be scattered, in each
  // microbatch.
  setSharding(*kept.parameter, spell(whole, *kept.parameter), signatures);
  if (kept.gradients)
    setSharding(*kept.gradients, spell(whole, *kept.gradients), signatures);
  for (OpOperand *written : kept.parameter->written) {
    // The new value is computed in shards, and gathered where it becomes the state.
    Value next = written->get();
    OpBuilder builder(written->getOwner());
    written->set(ConstrainOp::create(builder, next.getLoc(), next, attr));
    auto func = written->getOwner()->getParentOfType<func::FuncOp>();
    if (!kept.gradients) {
      for (nn::GradientOp gradient : gradients.lookup({func, kept.parameter->name}))
        constrain(gradient.getResult(), attr);
      continue;
    }
    // The gradient of the last microbatch is added to the sum of the others, and reduced with it.
    for (BlockArgument argument : kept.gradients->arguments)
      if (argument.getOwner() == &func.front())
        for (Operation *user : llvm::to_vector(argument.getUsers()))
          constrain(user->getResult(0), attr);
  }
}

LogicalResult OptimizerShards::run() {
  collect();
  int64_t sharded = 0;
  for (const Kept &kept : all) {
    if (kept.states.empty())
      continue;
    FailureOr<ValueSharding> sharding = getSharding(*kept.parameter);
    if (failed(sharding))
      return failure();
    ValueSharding whole = *sharding;
    if (!split(*sharding, kept.parameter->getFirst()) || !pays(kept, whole))
      continue;
    annotate(kept, whole, *sharding);
    ++sharded;
  }
  if (!all.empty())
    DistDialect::getDecisionLog(module.getContext())
        .add("shard-optimizer", sharded ? Outcome::Applied : Outcome::Declined, module.getLoc(),
             llvm::formatv("the optimizer's state of {0} of {1} parameters is in shards over {2}",
                           sharded, all.size(), toString(axes, mesh))
                 .str(),
             {{"parameters", double(sharded)}, {"shards", double(getNumShards(axes))}});
  return success();
}

namespace {
struct ShardOptimizerPass : meshwright::impl::ShardOptimizerPassBase<ShardOptimizerPass> {
  using ShardOptimizerPassBase::ShardOptimizerPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    bool isTraining = llvm::any_of(module.getOps<nn::StateOp>(), [](nn::StateOp state) {
      return state.getRole() == "optimizer" || state.getRole() == "master";
    });
    if (mode == OnOffAuto::Off || !isTraining)
      return markAllAnalysesPreserved();
    auto meshOp = getOnlyMesh(module);
    if (failed(meshOp))
      return signalPassFailure();
    AxisList found = findAxes(*meshOp);
    if (found.empty())
      return markAllAnalysesPreserved();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(module);
    auto &factors = SharedFactorAnalysis::get(getAnalysisManager(), functions);
    if (failed(factors) ||
        failed(OptimizerShards(module, *meshOp, *factors, found, mode).run()))
      return signalPassFailure();
  }

private:
  /// The axes of the option, or else those along which ranks see other tokens.
  AxisList findAxes(MeshOp meshOp) {
    SmallVector<RoleAxes> wanted;
    for (const std::string &name : axes)
      wanted.emplace_back(AxisRole::Data, AxisChoice::get(name));
    if (axes.empty())
      for (AxisRole role : {AxisRole::Data, AxisRole::Ring, AxisRole::Ulysses})
        wanted.emplace_back(role, AxisChoice());
    AxisList found;
    for (const StageMesh &view : getStageMeshes(meshOp))
      for (const RoleAxes &role : wanted)
        for (const Axis &axis : role.get(meshOp, view))
          if (!contains(found, axis))
            found.push_back(axis);
    return found;
  }
};
} // namespace

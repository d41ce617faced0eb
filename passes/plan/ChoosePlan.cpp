//===- ChoosePlan.cpp - choose a mesh and options, and parallelize -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/CostModel/AssumedDevice.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/Planner.h"
#include "meshwright/passes/plan/ExplainPlan.h"
#include "meshwright/passes/plan/Passes.h"
#include "meshwright/passes/plan/Search.h"

#include "llvm/ADT/StringExtras.h"

namespace meshwright {
#define GEN_PASS_DEF_CHOOSEPLANPASS
#include "meshwright/passes/plan/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// Checks that the planner may choose a mesh, and returns its ranks. A mesh of the module that no
/// value uses makes way.
static FailureOr<int64_t> takeRanks(ModuleOp module, const ParallelizeOptions &request) {
  auto meshes = llvm::to_vector(module.getOps<dist::MeshOp>());
  int64_t ranks = request.ranks;
  for (dist::MeshOp own : meshes) {
    if (!SymbolTable::symbolKnownUseEmpty(own, module))
      return own.emitOpError() << "shards values of the program: the planner chooses no other mesh; "
                                  "expected options without ranks and mesh=auto";
    if (!ranks)
      ranks = own.getMesh().getNumRanks();
  }
  if (!ranks)
    return module.emitError() << "mesh=auto: the program has no mesh: expected ranks=N";
  for (dist::MeshOp own : meshes)
    own.erase();
  return ranks;
}

/// Returns true for an axis that has a usual name of pipelines, and that no option gives a role.
static bool isPipelineAxis(const ParallelizeOptions &options, StringRef name) {
  if (!llvm::is_contained({"pp", "pipe", "pipeline"}, name))
    return false;
  return llvm::none_of(kAxisRoles, [&](const AxisRoleDescription &known) {
    AxisChoice choice = options.axes.get(known.role);
    return choice.kind == AxisChoice::Named && llvm::is_contained(llvm::split(choice.name, ','), name);
  });
}

/// No plan fits: names the least memory that is needed, or says why there is no plan.
static LogicalResult reportNoPlan(ModuleOp module, PlanSearch &search,
                                  ArrayRef<Candidate> candidates, int64_t limit,
                                  const ParallelizeOptions &request) {
  auto [options, bytes] = search.findLeast(candidates);
  if (!bytes)
    return module.emitError() << "no plan"
                              << (request.ranks ? " for " + std::to_string(request.ranks) + " ranks"
                                                : std::string())
                              << " is possible: " << search.getRefusal();
  if (bytes <= limit)
    return module.emitError() << "no plan is possible: " << search.getRefusal();
  return module.emitError() << (request.memoryCeiling ? "memory-ceiling: " : "memory of the device: ")
                            << "no plan" << (request.ranks ? " for " + std::to_string(request.ranks) + " ranks" : std::string())
                            << " fits in " << limit << " bytes (" << formatBytes(limit)
                            << "): the least that is needed is " << bytes << " bytes ("
                            << formatBytes(bytes) << "), with " << describePlan(options);
}

/// Chooses the options that a user spells out as auto. They stay auto where no plan can be made: then the
/// pipeline reports why.
static ParallelizeOptions chooseStated(ModuleOp module, const ParallelizeOptions &request,
                                       const ProgramExtents &extents) {
  ParallelizeOptions base = request;
  base.forgetPlanner();
  std::vector<Candidate> candidates{{base}};
  if (request.asksFor("context-parallel")) {
    candidates = listContexts(module, base);
    // Without an axis that is free there is nothing to compare, as the pass that chooses it says.
    bool choosesAxes = base.axes.get(AxisRole::Ring).kind == AxisChoice::Auto;
    if (choosesAxes && candidates.size() == 1 && request.statedAuto.size() == 1)
      return base;
  }
  PlanSearch search(module, request, extents, request.memoryCeiling.value_or(0));
  search.run(candidates);
  const PricedPlan *best = search.getBest();
  if (!best)
    return base;
  logChoice(module, search, Objective::Time);
  return best->options;
}

FailureOr<ParallelizeOptions> meshwright::choosePlan(ModuleOp module,
                                                     const ParallelizeOptions &request) {
  auto entries = nn::getEntries(module);
  bool isSpmd = llvm::any_of(entries, [](FunctionOpInterface entry) {
    return entry->hasAttr(dist::DistDialect::kSpmdAttr);
  });
  if (!request.asksForAll() && (entries.empty() || isSpmd)) {
    ParallelizeOptions base = request;
    base.forgetPlanner();
    return base;
  }
  if (entries.empty())
    return module.emitError() << "the planner expects a program with an entry, got none";
  if (isSpmd)
    return module.emitError() << "the planner expects a global program, got an SPMD program, which "
                                 "has its mesh: expected neither ranks nor mesh=auto nor objective";
  ParallelizeOptions base = request;
  for (const MeshAxisOption &axis : base.mesh.axes)
    if (request.asksForAll() && isPipelineAxis(base, axis.name))
      return module.emitError() << "mesh axis \"" << axis.name
                                << "\": layers are not divided over pipeline stages: expected axes of "
                                   "data, tensor, context or expert parallelism, or of weights in shards";
  std::string error;
  std::optional<AssumedDevice> assumed = findDevice(request.device, request.target, error);
  std::optional<Device> device = assumed ? getDevice(assumed->spelling, &error) : std::nullopt;
  if (!device)
    return module.emitError() << error;
  Objective objective = request.objective.value_or(Objective::Time);
  int64_t limit = request.memoryCeiling.value_or(device->memorySize);
  ProgramExtents extents(module, *device);
  if (!request.asksForAll())
    return chooseStated(module, request, extents);
  std::vector<Candidate> candidates;
  if (request.ranks || request.isMeshAuto) {
    FailureOr<int64_t> ranks = takeRanks(module, request);
    if (failed(ranks))
      return failure();
    candidates = listCandidates(base, *ranks, extents, limit);
    if (candidates.empty())
      return module.emitError() << "ranks: no axis is left to choose: expected that one of "
                                   "data-parallel and tensor-parallel is not 'none'";
    if (llvm::none_of(candidates, [&](const Candidate &candidate) {
          return givesEachRankWork(candidate.options, extents);
        }))
      return module.emitError() << "ranks: no mesh of " << *ranks
                                << " ranks gives each of them work: expected factors that fit a batch of "
                                << extents.batch << ", " << extents.tokens << " tokens and "
                                << extents.heads << " heads";
  } else {
    base.forgetPlanner();
    candidates = listContexts(module, base);
  }
  PlanSearch search(module, request, extents, limit);
  search.run(candidates);
  const PricedPlan *best = search.getBest();
  if (!best) {
    (void)reportNoPlan(module, search, candidates, limit, request);
    return failure();
  }
  logChoice(module, search, objective);
  return best->options;
}

namespace {
struct ChoosePlanPass : meshwright::impl::ChoosePlanPassBase<ChoosePlanPass> {
  using ChoosePlanPassBase::ChoosePlanPassBase;
  explicit ChoosePlanPass(const ParallelizeOptions &options) { request = options.str(); }

  void getDependentDialects(DialectRegistry &registry) const override {
    // Those of the pipeline, which the pass runs.
    OpPassManager pm(ModuleOp::getOperationName());
    buildParallelizePipeline(pm, {});
    pm.getDependentDialects(registry);
  }

  void runOnOperation() override {
    FailureOr<ParallelizeOptions> options =
        readParallelizeOptions(request, [&](const Twine &message) -> LogicalResult {
          return emitError(getOperation().getLoc(), message);
        });
    if (failed(options))
      return signalPassFailure();
    if (options->asksPlanner())
      options = choosePlan(getOperation(), *options);
    if (failed(options))
      return signalPassFailure();
    OpPassManager pm(ModuleOp::getOperationName());
    buildParallelizePipeline(pm, *options);
    if (failed(runPipeline(pm, getOperation())))
      signalPassFailure();
  }
};
} // namespace

std::unique_ptr<Pass> meshwright::createChoosePlanPass(const ParallelizeOptions &request) {
  return std::make_unique<ChoosePlanPass>(request);
}

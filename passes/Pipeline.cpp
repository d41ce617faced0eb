//===- Pipeline.cpp - from imported IR to launches ------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/Pipeline.h"

#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/CostModel/AssumedDevice.h"
#include "meshwright/lib/CostModel/ProgramCost.h"
#include "meshwright/lib/Stages/RoleAxes.h"
#include "meshwright/lib/Stages/StageMeshes.h"
#include "meshwright/lib/Support/IsolatedModule.h"
#include "meshwright/lib/Support/RunPasses.h"
#include "meshwright/passes/annotate/Passes.h"
#include "meshwright/passes/annotate/Pipeline.h"
#include "meshwright/passes/bind/Passes.h"
#include "meshwright/passes/bind/Pipeline.h"
#include "meshwright/passes/differentiate/Models.h"
#include "meshwright/passes/differentiate/Passes.h"
#include "meshwright/passes/differentiate/Pipeline.h"
#include "meshwright/passes/optimise/Passes.h"
#include "meshwright/passes/optimise/Pipeline.h"
#include "meshwright/passes/partition/Models.h"
#include "meshwright/passes/partition/Passes.h"
#include "meshwright/passes/partition/Pipeline.h"
#include "meshwright/passes/plan/Passes.h"
#include "meshwright/passes/propagate/Passes.h"
#include "meshwright/passes/propagate/Pipeline.h"
#include "meshwright/passes/recompute/Passes.h"
#include "meshwright/passes/report/Passes.h"
#include "meshwright/passes/schedule/Passes.h"
#include "meshwright/passes/schedule/PlannedMemory.h"
#include "meshwright/passes/schedule/ReportSchedule.h"
#include "meshwright/passes/serve/ModelHash.h"
#include "meshwright/passes/serve/Passes.h"
#include "meshwright/passes/train/Passes.h"
#include "meshwright/passes/verify/Passes.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace meshwright;

/// Adds the passes that replace gradients. Only they and the policies need to find parameters that
/// are state.
static void buildGradients(OpPassManager &pm) {
  buildDifferentiatePipeline(pm);
  pm.addPass(createReleaseParametersPass());
}

/// The same for a program that runs as it is: nothing is computed again, and nothing travels.
static void buildGradientsAsIs(OpPassManager &pm) {
  buildGradients(pm);
  pm.addPass(createRecomputePass({RecomputeMode::None, 0}));
  pm.addNestedPass<func::FuncOp>(createEncodeFetchesPass());
}

LogicalResult meshwright::prepareAsIs(ModuleOp module) {
  return runPasses(module, [](OpPassManager &pm) {
    buildBindPipeline(pm);
    buildGradientsAsIs(pm);
  });
}

LogicalResult meshwright::requestGradients(ModuleOp module, StringRef loss,
                                           ArrayRef<std::string> parameters,
                                           ArrayRef<std::string> frozen) {
  RequestGradientsPassOptions options;
  options.loss = loss.str();
  options.parameters.assign(parameters.begin(), parameters.end());
  options.frozen.assign(frozen.begin(), frozen.end());
  PassManager manager(module.getContext());
  manager.addPass(createRequestGradientsPass(options));
  return manager.run(module);
}

LogicalResult meshwright::buildSteps(ModuleOp module, const TrainOptions &options) {
  BuildStepsPassOptions steps;
  const OptimizerOptions &optimizer = options.optimizer;
  steps.optimizer = optimizer.kind;
  steps.lr = optimizer.lr;
  steps.momentum = optimizer.momentum;
  steps.beta1 = optimizer.beta1;
  steps.beta2 = optimizer.beta2;
  steps.eps = optimizer.eps;
  steps.weightDecay = optimizer.weightDecay;
  steps.clipNorm = options.clipNorm;
  steps.microbatches = options.microbatches;
  steps.seed = options.seed;
  steps.lossScale = options.lossScale;
  steps.growthInterval = options.growthInterval;
  if (failed(requestGradients(module, options.loss, options.parameters, options.frozen)))
    return failure();
  PassManager manager(module.getContext());
  manager.addPass(createBuildStepsPass(steps));
  return manager.run(module);
}

LogicalResult meshwright::buildServing(ModuleOp module, const ServeOptions &options) {
  ServePassOptions steps;
  steps.groups = options.groups;
  steps.deal = options.deal;
  steps.pageSize = options.pageSize;
  steps.pages = options.pages;
  steps.requests = options.maxRequests;
  steps.prefixCache = options.sharesBeginnings;
  steps.gather = options.gather;
  const std::vector<int64_t> buckets =
      options.buckets.empty() ? getDefaultBuckets(options.maxRequests) : options.buckets;
  steps.buckets.assign(buckets.begin(), buckets.end());
  nn::setModelHash(module, hashModel(module));
  PassManager manager(module.getContext());
  manager.addPass(createAbsorbLatentKeysPass());
  manager.addPass(createServePass(steps));
  return manager.run(module);
}

void meshwright::buildSchedulePhase(OpPassManager &pm, const ScheduleOptions &options) {
  buildSchedulePipeline(pm, options);
  if (options.verifyPlacement)
    pm.addNestedPass<func::FuncOp>(createVerifyPlacementPass());
}

FailureOr<ParallelizeOptions> meshwright::readParallelizeOptions(StringRef text,
                                                                 OptionErrorHandler error) {
  FailureOr<ParallelizeOptions> options = parseParallelizeOptions(text, error);
  if (failed(options))
    return failure();
  std::string problem;
  if (!findDevice(options->device, options->target, problem))
    return error(problem);
  if (auto target = getKernelTarget(options->target); !target)
    return error(toString(target.takeError()));
  return options;
}

/// Schedules a copy of a program for the report on it. Returns false if the program cannot be scheduled.
static bool addScheduleOfCopy(FunctionOpInterface function, Report &report) {
  TriedPrograms &tried = TriedPrograms::of(function.getContext());
  std::lock_guard<std::recursive_mutex> lock(tried.mutex);
  MLIRContext *context = tried.getContext().get();
  IsolatedModule copy(function->getParentOfType<ModuleOp>(), tried.getContext());
  dist::DistDialect::getDecisionLog(context).clear();
  if (failed(copy.run([](OpPassManager &pm) { buildSchedulePhase(pm); })))
    return false;
  auto planned = copy.get().lookupSymbol<func::FuncOp>(function.getName());
  if (!planned || !isPlanned(planned))
    return false;
  addSchedule(function, planned, report);
  addDecisions(report, context, [](const Decision &decision) { return decision.subject == Subject::Program; });
  return true;
}

/// Returns a function that adds the schedule of a program to the report on it.
static ScheduleReporter getScheduleReporter() {
  return [](FunctionOpInterface function, Report &report) {
    if (auto func = dyn_cast<func::FuncOp>(*function); func && isPlanned(func))
      addSchedule(function, func, report);
    else if (!addScheduleOfCopy(function, report))
      report.memory = planSessionMemory(function);
  };
}

static bool asksSchedule(const RequestSchedulePassOptions &request) {
  return request.overlap != OnOffAuto::Auto || request.memoryCeiling || request.prefetch.number;
}

/// Adds the pass that notes on an SPMD program how to schedule it, if an option says so.
static void addScheduleRequest(OpPassManager &pm, const RequestSchedulePassOptions &request) {
  if (asksSchedule(request))
    pm.addPass(createRequestSchedulePass(request));
}

/// The requests for the schedule of a plan that is tried: all but the ceiling.
static RequestSchedulePassOptions getTriedRequest(const ParallelizeOptions &options) {
  return {options.overlap, /*memoryCeiling=*/0, options.gtpPrefetch, /*refuses=*/false};
}

/// The passes behind `recompute` that change what a rank holds.
static void addStorage(OpPassManager &pm, OnOffAuto shardSaved, OnOffAuto gtpKeep) {
  pm.addPass(createSaveShardsPass({shardSaved, /*memoryCeiling=*/0}));
  pm.addNestedPass<func::FuncOp>(createEncodeFetchesPass());
  pm.addPass(createSplitFetchesPass({gtpKeep, /*memoryCeiling=*/0}));
}

/// Returns true if a value is kept in shards for the backward pass.
static bool keepsShards(FunctionOpInterface function) {
  auto gathers = function.getFunctionBody().getOps<dist::CollectiveOpInterface>();
  return llvm::any_of(gathers, [](dist::CollectiveOpInterface op) {
    return op.getRole() == dist::CollectiveRole::Saved;
  });
}

/// Returns a function that plans a program as the options ask.
static TryPlan getPlanTrial(const ParallelizeOptions &options) {
  OnOffAuto gtpKeep = options.gtpKeep;
  return [gtpKeep, request = getTriedRequest(options)](FunctionOpInterface function, int64_t ceiling,
                                                       OnOffAuto shardSaved) {
    auto plan = [&](OnOffAuto inShards) -> std::optional<TriedPlan> {
      FunctionOpInterface stored = function;
      TriedPrograms &tried = TriedPrograms::of(function.getContext());
      std::lock_guard<std::recursive_mutex> lock(tried.mutex);
      IsolatedModule copy(function->getParentOfType<ModuleOp>(), tried.getContext());
      auto prepare = [&](OpPassManager &pm) {
        addStorage(pm, inShards, gtpKeep);
        addScheduleRequest(pm, request);
      };
      if (succeeded(copy.run(prepare)))
        stored = copy.get().lookupSymbol<func::FuncOp>(function.getName());
      if (shardSaved == OnOffAuto::Auto && inShards == OnOffAuto::On && !keepsShards(stored))
        return std::nullopt;
      PlannedMemory planned = planOrder(stored, ceiling);
      return TriedPlan{planned.refusal.empty() ? 0 : std::max<int64_t>(planned.needed, 1), planned.time,
                       planned.hidesMost};
    };
    TriedPlan whole = *plan(shardSaved == OnOffAuto::On ? OnOffAuto::On : OnOffAuto::Off);
    if (shardSaved != OnOffAuto::Auto || whole.fits())
      return whole;
    std::optional<TriedPlan> cut = plan(OnOffAuto::On);
    return cut && cut->needed < whole.needed ? *cut : whole;
  };
}

/// Returns a function that finds the time of a program under a ceiling, scheduled as the options ask.
static FindTime getTimeFinder(const ParallelizeOptions &options) {
  return [request = getTriedRequest(options)](FunctionOpInterface function, int64_t ceiling,
                                              bool bestOnly) -> std::optional<int64_t> {
    if (asksSchedule(request) && failed(runPasses(function->getParentOfType<ModuleOp>(), [&](OpPassManager &pm) {
          addScheduleRequest(pm, request);
        })))
      return std::nullopt;
    if (bestOnly)
      return MemoryPlanner().findBestTime(function, ceiling);
    PlannedMemory planned = planOrder(function, ceiling);
    if (!planned.refusal.empty())
      return std::nullopt;
    return planned.time;
  };
}

void meshwright::addReport(OpPassManager &pm, llvm::StringRef file) {
  ReportCommunicationPassOptions options;
  options.file = file.str();
  pm.addPass(createReportCommunicationPass(options, getScheduleReporter()));
}

/// Prices a candidate by the program that the phases make of it.
static FoldPrice priceFold(ModuleOp stage, const FoldEncoderPassOptions &fold, OnOffAuto overlap) {
  FoldPrice price;
  TriedPrograms &tried = TriedPrograms::of(stage.getContext());
  std::lock_guard<std::recursive_mutex> lock(tried.mutex);
  IsolatedModule copy(stage, tried.getContext());
  auto build = [&](OpPassManager &pm) {
    buildFoldPipeline(pm, fold);
    buildPropagatePipeline(pm);
    buildPartitionPipeline(pm);
    buildOptimisePipeline(pm, {fold.sequenceParallel});
  };
  if (failed(copy.run(build))) {
    price.refusal = copy.takeError();
    if (price.refusal.empty())
      price.refusal = "cannot be planned";
    return price;
  }
  auto func = *copy.get().getOps<func::FuncOp>().begin();
  price.cost = getProgramCost(func, CostModel(dist::getSpmdMesh(func)));
  // If the weights alone exceed the ceiling, no order keeps to it.
  price.fits = !fold.memoryCeiling || countMemory(func).weights <= fold.memoryCeiling;
  int64_t ceiling = price.fits ? fold.memoryCeiling : 0;
  auto request = [&](OpPassManager &pm) {
    addScheduleRequest(pm, {overlap, ceiling, {}, /*refuses=*/false});
  };
  if (failed(copy.run(request))) {
    price.refusal = copy.takeError();
    return price;
  }
  PlannedMemory planned = planMemory(func, ceiling);
  price.memory = std::move(planned.memory);
  price.fits &= planned.refusal.empty();
  return price;
}

static PriceFold getFoldPricing(OnOffAuto overlap) {
  return [overlap](ModuleOp stage, const FoldEncoderPassOptions &fold) {
    return priceFold(stage, fold, overlap);
  };
}

/// Before any phase that plans memory.
static void addTarget(OpPassManager &pm, const ParallelizeOptions &options) {
  if (!options.target.empty())
    pm.addPass(createSetTargetPass({options.target}));
}

/// Behind the policies, which choose the layouts of parameters.
static void addOptimizerShards(OpPassManager &pm, const ParallelizeOptions &options) {
  ShardOptimizerPassOptions shards;
  shards.mode = options.shardOptimizer;
  pm.addPass(createShardOptimizerPass(shards));
}

void meshwright::buildPhase(OpPassManager &pm, const ParallelizeOptions &options, Phase phase) {
  switch (phase) {
  case Phase::Annotated:
    if (options.storedWeights == StoredWeights::Widen)
      pm.addPass(createWidenStoredPass());
    // All other phases see state as arguments and results.
    buildBindPipeline(pm);
    pm.addNestedPass<func::FuncOp>(createVerifyRoutingsPass());
    buildTiePipeline(pm, /*keepFirst=*/false);
    addTarget(pm, options);
    buildAnnotatePipeline(pm, {options, getFoldPricing(options.overlap)});
    buildTiePipeline(pm, /*keepFirst=*/true);
    addOptimizerShards(pm, options);
    return;
  case Phase::Propagated:
    // Policies of the forward pass see no backward ops.
    buildGradients(pm);
    buildPropagatePipeline(pm);
    return;
  case Phase::Partitioned:
    buildPartitionPipeline(pm);
    return;
  case Phase::Optimised:
    // SPMD programs enter here.
    addTarget(pm, options);
    buildOptimisePipeline(pm, {options.sequenceParallel, options.reduceTypes, options.gtpReduce});
    return;
  case Phase::Stored:
    pm.addPass(createRecomputePass({options.recompute, options.memoryCeiling.value_or(0),
                                    options.shardSaved, /*keepMarks=*/true},
                                   getPlanTrial(options)));
    pm.addPass(createSaveShardsPass({options.shardSaved, options.memoryCeiling.value_or(0)},
                                    getPlanTrial(options)));
    pm.addNestedPass<func::FuncOp>(createEncodeFetchesPass());
    pm.addPass(createSplitFetchesPass({options.gtpKeep, options.memoryCeiling.value_or(0)}, getTimeFinder(options)));
    // Weights that travel alone are there for a shorter time.
    if (!options.memoryCeiling)
      pm.addNestedPass<func::FuncOp>(createJoinFetchesPass({options.gtpPrefetch}));
    pm.addNestedPass<func::FuncOp>(createVerifyPlacementPass());
    pm.addPass(createCheckMeshAxesPass());
    return;
  case Phase::Spmd:
    addScheduleRequest(pm, {options.overlap, options.memoryCeiling.value_or(0), options.gtpPrefetch,
                            /*refuses=*/true});
    return;
  case Phase::Rt: {
    // A global program for one rank may enter here.
    buildBindPipeline(pm);
    buildGradientsAsIs(pm);
    ScheduleOptions schedule;
    schedule.verifyPlacement = true;
    buildSchedulePhase(pm, schedule);
    return;
  }
  }
}

bool meshwright::mayScatterTokens(ModuleOp annotated) {
  auto meshOp = dist::getOnlyMesh(annotated);
  if (failed(meshOp))
    return true;
  RoleAxes role(AxisRole::Tensor, AxisChoice());
  return llvm::any_of(getStageMeshes(*meshOp), [&](const StageMesh &view) {
    return !role.get(*meshOp, view).empty();
  });
}

void meshwright::buildParallelizePipeline(OpPassManager &pm, const ParallelizeOptions &options,
                                          Phase to) {
  for (Phase phase : {Phase::Annotated, Phase::Propagated, Phase::Partitioned, Phase::Optimised,
                      Phase::Stored, Phase::Spmd, Phase::Rt}) {
    buildPhase(pm, options, phase);
    if (phase == to)
      return;
  }
}

void meshwright::registerPasses() {
  // MLIR keeps the first pass that is registered under a name. The passes that TableGen
  // registers know their own phase only, so passes that ask other phases come first.
  registerPass([] { return createFoldEncoderPass({}, getFoldPricing(OnOffAuto::Auto)); });
  registerPass([] { return createReportCommunicationPass({}, getScheduleReporter()); });
  registerPass([] { return createRecomputePass({}, getPlanTrial({})); });
  registerPass([] { return createSaveShardsPass({}, getPlanTrial({})); });
  registerPass([] { return createSplitFetchesPass({}, getTimeFinder({})); });

  registerBindPasses();
  registerAnnotatePasses();
  registerDifferentiatePasses();
  registerPropagatePasses();
  registerPartitionPasses();
  registerOptimisePasses();
  registerRecomputePasses();
  registerTrainPasses();
  registerServePasses();
  registerSchedulePasses();
  registerReportPasses();
  registerVerifyPasses();
  registerPlanPasses();
}

void meshwright::registerModels(DialectRegistry &registry) {
  registerDifferentiation(registry);
  registerPartitionModels(registry);
}

namespace {
struct DifferentiateOptions : PassPipelineOptions<DifferentiateOptions> {
  Option<std::string> loss{*this, "loss", llvm::cl::init("0"),
                           llvm::cl::desc("the output that is differentiated")};
  ListOption<std::string> parameters{*this, "parameters",
                                     llvm::cl::desc("shell patterns of names of parameters")};
};
} // namespace

void meshwright::registerPipelines() {
  PassPipelineRegistration<DifferentiateOptions>(
      "differentiate", "gradients of a loss as results of a global program",
      [](OpPassManager &pm, const DifferentiateOptions &options) {
        RequestGradientsPassOptions request;
        request.loss = options.loss;
        request.parameters.assign(options.parameters.begin(), options.parameters.end());
        pm.addPass(createRequestGradientsPass(request));
        buildDifferentiatePipeline(pm);
      });
  registerPassPipeline(
      "parallelize", "the whole pipeline, from a global program to SPMD IR",
      [](OpPassManager &pm, StringRef text,
         llvm::function_ref<LogicalResult(const llvm::Twine &)> error) -> LogicalResult {
        auto options = readParallelizeOptions(text, error);
        if (failed(options))
          return failure();
        if (options->asksPlanner())
          pm.addPass(createChoosePlanPass(*options));
        else
          buildParallelizePipeline(pm, *options);
        return success();
      },
      [](llvm::function_ref<void(const mlir::detail::PassOptions &)>) {});
  PassPipelineRegistration<>("schedule",
                             "from SPMD IR, or a global program for one rank, to planned launches",
                             [](OpPassManager &pm) { buildPhase(pm, {}, Phase::Rt); });
}

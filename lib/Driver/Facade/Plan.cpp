//===- Plan.cpp - the public class Plan -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/KernelTarget.h"
#include "meshwright/lib/Driver/Execute/CompileBundle.h"
#include "meshwright/lib/Driver/Facade/ExpertLoads.h"
#include "meshwright/lib/Driver/Facade/MeasuredRun.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Driver/Facade/WeightTensors.h"
#include "meshwright/lib/Driver/Facade/WidenedParameters.h"
#include "meshwright/lib/Support/RunPasses.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/Planner.h"
#include "meshwright/passes/schedule/PlannedMemory.h"
#include "meshwright/runtime/include/Backend.h"
#include "meshwright/runtime/include/PlainNumbers.h"

#include "mlir/Pass/PassManager.h"

using namespace meshwright;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::LogicalResult;
using mlir::ModuleOp;
using mlir::succeeded;
using mlir::success;

//===----------------------------------------------------------------------===//
// Planning
//===----------------------------------------------------------------------===//

FailureOr<ParallelizeOptions> meshwright::readOptions(std::string_view text,
                                                      std::vector<Diagnostic> &errors) {
  return readParallelizeOptions(llvm::StringRef(text), collectInto(errors));
}

Result<Plan> Plan::parallelize(const Program &program, std::string_view text) {
  std::vector<Diagnostic> errors;
  FailureOr<ParallelizeOptions> options = readOptions(text, errors);
  if (failed(options))
    return errors;

  auto impl = std::make_shared<Impl>();
  impl->program = program.impl;
  impl->options = *options;
  impl->context = createContext();
  DiagnosticCollector collector(impl->context.get());
  mlir::OwningOpRef<ModuleOp> module = program.impl->cloneInto(impl->context.get());
  if (!module)
    return collector.take();
  if (options->asksPlanner()) {
    options = choosePlan(*module, *options);
    if (failed(options))
      return collector.take();
    impl->options = *options;
  }

  auto run = [&](llvm::ArrayRef<Phase> phases) {
    return succeeded(runPasses(*module, [&](mlir::OpPassManager &pm) {
      for (Phase phase : phases)
        buildPhase(pm, *options, phase);
    }));
  };
  // The next phase goes on with the copy: its ops are in memory in the order of the program, which caches
  // need where phases have replaced ops in any order.
  auto keep = [&](PlanPhase phase) {
    mlir::OwningOpRef<ModuleOp> next = module->clone();
    impl->phases[static_cast<size_t>(phase)] = std::exchange(module, std::move(next));
  };
  if (options->storedWeights == StoredWeights::Widen)
    impl->widened = WidenedParameters::create(*program.impl);
  if (program.isSpmd()) {
    // The phases before *optimise* find no global functions. They check the options.
    if (!run(Phase::Annotated) || !run(Phase::Propagated) || !run(Phase::Partitioned))
      return collector.take();
  } else {
    keep(PlanPhase::Global);
    if (!run(Phase::Annotated))
      return collector.take();
    keep(PlanPhase::Annotated);
    if (!run(Phase::Propagated))
      return collector.take();
    keep(PlanPhase::Propagated);
    bool scatters = options->sequenceParallel != OnOffAuto::Off && mayScatterTokens(*module);
    if (!run(Phase::Partitioned))
      return collector.take();
    if (!scatters && failed(impl->countPlain(*module)))
      return collector.take();
  }
  if (impl->mayStoreLess()) {
    if (!run(Phase::Optimised))
      return collector.take();
    impl->optimised = module->clone();
    if (!run(Phase::Stored))
      return collector.take();
  } else if (!run({Phase::Optimised, Phase::Stored})) {
    return collector.take();
  }
  FailureOr<Report> report = buildReport(getEntry(*module));
  if (failed(report))
    return collector.take();
  impl->report = std::move(*report);
  impl->phases[static_cast<size_t>(PlanPhase::Spmd)] = std::move(module);
  impl->keepPlanned();
  ModuleOp spmd = impl->get(PlanPhase::Spmd);
  impl->choosesChunks = !getEntry(spmd)->hasAttr(rt::RtDialect::kChunksAttr);
  if (failed(impl->requestSchedule(spmd)))
    return collector.take();
  Plan plan;
  plan.impl = std::move(impl);
  return {std::move(plan), collector.take()};
}

Result<Plan> Plan::asIs(const Program &program) {
  auto impl = std::make_shared<Impl>();
  impl->program = program.impl;
  impl->context = createContext();
  DiagnosticCollector collector(impl->context.get());
  mlir::OwningOpRef<ModuleOp> module = program.impl->cloneInto(impl->context.get());
  if (!module)
    return collector.take();
  PlanPhase phase = program.isSpmd() ? PlanPhase::Spmd : PlanPhase::Global;
  if (dist::MeshAttr mesh = dist::getSpmdMesh(getEntry(*module)))
    impl->report.ranks = mesh.getNumRanks();
  impl->phases[static_cast<size_t>(phase)] = std::move(module);
  impl->keepPlanned();
  Plan plan;
  plan.impl = std::move(impl);
  return {std::move(plan), collector.take()};
}

mlir::LogicalResult Plan::Impl::countPlain(ModuleOp module) {
  for (mlir::FunctionOpInterface entry : nn::getEntries(module)) {
    FailureOr<Traffic> traffic = countTraffic(entry);
    if (failed(traffic))
      return failure();
    plain[entry.getName()] = *traffic;
  }
  return success();
}

void Plan::Impl::keepPlanned() {
  mlir::FunctionOpInterface entry = getEntry(get(getExecutedPhase()));
  if (auto noted = entry->getAttrOfType<mlir::StringAttr>(rt::RtDialect::kTargetAttr))
    target = ownTarget = noted.str();
  report.target = target;
  planned = report;
}

LogicalResult Plan::Impl::requestSchedule(ModuleOp module) {
  dist::DistDialect::getDecisionLog(context.get()).clear();
  if (failed(runPasses(module, [&](mlir::OpPassManager &pm) { buildPhase(pm, *options, Phase::Spmd); })))
    return failure();
  addDecisions(report, context.get(), [](const Decision &) { return true; });
  return success();
}

LogicalResult Plan::Impl::setTarget(llvm::StringRef text, std::vector<Diagnostic> &diagnostics) {
  if (text.empty())
    text = ownTarget;
  if (text == target)
    return success();
  DiagnosticCollector collector(context.get());
  auto fail = [&]() -> LogicalResult {
    for (Diagnostic &diagnostic : collector.take())
      diagnostics.push_back(std::move(diagnostic));
    return failure();
  };
  mlir::OwningOpRef<ModuleOp> retargeted = get(getExecutedPhase()).clone();
  for (auto func : retargeted->getOps<mlir::func::FuncOp>()) {
    std::shared_ptr<const KernelTarget> known = getKernelTarget(func, text);
    if (!known || failed(checkTarget(func, *known)))
      return fail();
    meshwright::setTarget(func, text);
    if (choosesChunks)
      func->removeAttr(rt::RtDialect::kChunksAttr);
    if (options) {
      func->removeAttr(rt::RtDialect::kCopiesAttr);
      func->removeAttr(rt::RtDialect::kExpertChunksAttr);
    }
  }
  Report former = std::exchange(report, planned);
  if (options && failed(requestSchedule(*retargeted))) {
    report = std::move(former);
    return fail();
  }
  phases[static_cast<size_t>(getExecutedPhase())] = std::move(retargeted);
  target = text.str();
  report.target = target;
  isComplete = false;
  executable.reset();
  session.reset();
  return success();
}

ScheduleOptions Plan::Impl::getScheduleOptions() const {
  ScheduleOptions schedule;
  schedule.verifyPlacement = options.has_value();
  return schedule;
}

/// Returns the rt program, or null after an error.
mlir::OwningOpRef<ModuleOp> Plan::Impl::schedule() const {
  mlir::OwningOpRef<ModuleOp> scheduled = get(getExecutedPhase()).clone();
  LogicalResult status = runPasses(*scheduled, [&](mlir::OpPassManager &pm) {
    buildSchedulePhase(pm, getScheduleOptions());
  });
  return succeeded(status) ? std::move(scheduled) : nullptr;
}

Result<std::string> Plan::str(PlanPhase phase, bool locations, bool generic) const {
  std::lock_guard<std::mutex> lock(impl->mutex);
  if (phase == PlanPhase::Rt) {
    DiagnosticCollector collector(impl->context.get());
    mlir::OwningOpRef<ModuleOp> scheduled = impl->schedule();
    if (!scheduled)
      return collector.take();
    return print(*scheduled, locations, generic);
  }
  ModuleOp module = impl->get(phase);
  if (!module)
    return std::vector<Diagnostic>{makeError(
        impl->options ? "the program was SPMD from the start: it has no phase before that"
                       : "the program runs as it is: it has no such phase")};
  return print(module, locations, generic);
}

int64_t Plan::getNumRanks() const { return impl->report.ranks; }
const std::vector<Entry> &Plan::getEntries() const { return impl->program->ports.entries; }
const std::vector<Port> &Plan::getInputs() const { return getEntries().front().inputs; }
const std::vector<Port> &Plan::getOutputs() const { return getEntries().front().outputs; }
const std::vector<Port> &Plan::getParameters() const { return impl->program->ports.parameters; }
const std::vector<Port> &Plan::getStates() const { return impl->program->ports.states; }

//===----------------------------------------------------------------------===//
// Running
//===----------------------------------------------------------------------===//

FailureOr<std::unique_ptr<Executable>>
Plan::Impl::compile(PlanPhase phase, const CompileOptions &options,
                     std::vector<Diagnostic> &diagnostics) const {
  ModuleOp module = get(phase);
  // The plan is chosen.
  TriedPrograms::dropLaunches(module.getContext());
  DiagnosticCollector collector(module.getContext());
  FailureOr<std::unique_ptr<Executable>> executable = Executable::compile(module, options);
  if (failed(executable))
    for (Diagnostic &diagnostic : collector.take())
      diagnostics.push_back(std::move(diagnostic));
  return executable;
}

LogicalResult Plan::Impl::compileFor(llvm::StringRef target,
                                      std::vector<Diagnostic> &diagnostics) {
  if (failed(setTarget(target, diagnostics)))
    return failure();
  if (executable)
    return success();
  CompileOptions compiling;
  compiling.schedule = getScheduleOptions();
  auto compiled = compile(getExecutedPhase(), compiling, diagnostics);
  if (failed(compiled))
    return failure();
  executable = std::move(*compiled);
  return success();
}

FailureOr<std::string>
Plan::Impl::chooseTarget(llvm::StringRef given, const std::string &backend,
                          std::vector<Diagnostic> &diagnostics) const {
  if (!given.empty())
    return given.str();
  std::string needed, error;
  if (!rt::getBackendTarget(backend, needed, error)) {
    diagnostics.push_back(makeError(error));
    return failure();
  }
  bool isSameKind = llvm::StringRef(ownTarget).split(':').first ==
                    llvm::StringRef(needed).split(':').first;
  return needed.empty() || isSameKind ? ownTarget : needed;
}

LogicalResult meshwright::callEntry(rt::Session &session, const std::vector<HostArray> &inputs,
                                    const std::vector<void *> &outputs, std::string_view name,
                                    const rt::RunOptions &options,
                                    std::vector<Diagnostic> &diagnostics) {
  auto fail = [&](std::string message) {
    diagnostics.push_back(makeError(std::move(message)));
    return failure();
  };
  std::string error;
  int64_t index = session.getDescription().findEntry(std::string(name), error);
  if (index < 0)
    return fail(error);
  const rt::Call call = session.getDescription().getCall(index);
  const std::vector<rt::ProgramValue> &expected = call.inputs.values;
  size_t numOutputs = call.outputs.values.size();
  if (inputs.size() != expected.size() || outputs.size() != numOutputs)
    return fail("expected " + std::to_string(expected.size()) + " inputs and " +
                std::to_string(numOutputs) + " outputs, got " + std::to_string(inputs.size()) +
                " and " + std::to_string(outputs.size()));
  std::vector<rt::HostTensor> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const rt::ProgramValue &input = expected[i];
    if (!inputs[i].data && !input.defaultElement.empty()) {
      tensors.push_back({input.type, input.shape, nullptr});
      continue;
    }
    if (getRuntimeType(inputs[i].type) != input.type || inputs[i].shape != input.shape)
      return fail("input '" + input.name + "': expected " + rt::describe(input.type, input.shape) +
                  ", got " + rt::describe(getRuntimeType(inputs[i].type), inputs[i].shape));
    tensors.push_back(toHostTensor(inputs[i]));
  }
  return session.run(index, tensors, outputs, options, error) ? success() : fail(error);
}

LogicalResult Plan::Impl::run(rt::Session &session, const std::vector<HostArray> &inputs,
                               const std::vector<void *> &outputs, const RunOptions &options,
                               std::vector<Diagnostic> &diagnostics) const {
  rt::RunOptions settings;
  settings.timeout = options.timeout;
  settings.threadsPerRank = options.threadsPerRank;
  settings.checkFinite = options.checkFinite;
  settings.traceFile = options.trace;
  settings.measure = options.measure;
  settings.outputGpu = options.outputGpu;
  session.restart();
  session.setRecovery(options.recover);
  std::string error;
  if (!options.state.empty() && !session.load(options.state, error)) {
    diagnostics.push_back(makeError(error));
    return failure();
  }
  if (failed(callEntry(session, inputs, outputs, options.entry, settings, diagnostics))) {
    if (session.getWorld().isStuck())
      stuck = true;
    return failure();
  }
  if (options.saveState.empty() || session.save(options.saveState, error))
    return success();
  diagnostics.push_back(makeError(error));
  return failure();
}

Result<bool> Plan::run(const std::vector<HostArray> &inputs, const std::vector<void *> &outputs,
                       const RunOptions &options) {
  std::vector<Diagnostic> diagnostics;
  std::unique_lock<std::mutex> lock(impl->mutex);
  FailureOr<std::string> chosen =
      impl->chooseTarget(options.target, options.backend, diagnostics);
  if (failed(chosen) || failed(impl->compileFor(*chosen, diagnostics)))
    return diagnostics;
  if (!impl->session || impl->backend != options.backend) {
    impl->session = impl->start(*impl->executable, options.backend, diagnostics);
    impl->backend = options.backend;
    if (!impl->session)
      return diagnostics;
  }
  std::shared_ptr<rt::Session> session = impl->session;
  std::string target = impl->target;
  // Between a restart and the end of its run, a session belongs to one caller.
  std::unique_lock<std::mutex> call(impl->calling, std::defer_lock);
  lock.unlock();
  call.lock();
  if (failed(impl->run(*session, inputs, outputs, options, diagnostics)))
    return diagnostics;
  rt::RunReport run = session->getRunReport();
  std::vector<rt::ExpertLoad> experts = session->getExpertLoads();
  call.unlock();
  lock.lock();
  // Another thread may have asked for another target, which the report then describes.
  if (impl->target != target)
    return {true, diagnostics};
  setExperts(impl->report, getEntry(impl->get(impl->getExecutedPhase()), options.entry), experts);
  if (options.measure) {
    impl->report.runText = run.toText();
    impl->report.runJson = run.toJson();
    setMeasured(impl->report, run, options.entry.empty() || options.entry == getEntries().front().name);
  }
  return {true, diagnostics};
}

Result<Session> Plan::start(const SessionOptions &options) {
  std::vector<Diagnostic> diagnostics;
  if (!options.weights.empty() || options.randomWeights)
    return std::vector<Diagnostic>{makeError(
        "a plan has its parameters: expected neither a file of weights nor random weights")};
  std::unique_lock<std::mutex> lock(impl->mutex);
  FailureOr<std::string> chosen =
      impl->chooseTarget(options.target, options.backend, diagnostics);
  if (failed(chosen) || failed(impl->compileFor(*chosen, diagnostics)))
    return diagnostics;
  std::shared_ptr<rt::Session> session =
      impl->start(*impl->executable, options.backend, diagnostics);
  lock.unlock();
  if (!session)
    return diagnostics;
  return openSession(std::move(session), options);
}

bool Plan::isStuck() const { return impl->stuck; }

Result<CompileSummary> Plan::compile(std::string_view path, std::string_view target,
                                     bool withWeights,
                                     const std::optional<StateDictLayout> &stateDict) {
  std::lock_guard<std::mutex> lock(impl->mutex);
  std::vector<Diagnostic> diagnostics;
  if (impl->widened && !withWeights)
    return std::vector<Diagnostic>{
        makeError("stored-weights=widen: a bundle without weights would have to widen them: expected a bundle "
                  "with its weights, or stored-weights=keep")};
  if (failed(impl->setTarget(target, diagnostics)))
    return diagnostics;
  BundleOptions options;
  options.compile.schedule = impl->getScheduleOptions();
  options.stateDict = stateDict;
  if (!withWeights)
    options.tensors = getWeightTensors(*impl->program);
  else
    options.weightsHash = impl->hashWeights();
  if (failed(impl->completeReportLocked(diagnostics)))
    return diagnostics;
  // A bundle's report describes the plan, not a run of this process.
  Report report = impl->report;
  report.takeRun(Report());
  options.textReport = toString(report, ReportFormat::Text, /*verbose=*/true);
  options.jsonReport = toString(report, ReportFormat::Json, /*verbose=*/false);
  ModuleOp module = impl->get(impl->getExecutedPhase());
  DiagnosticCollector collector(module.getContext());
  FailureOr<CompileStatistics> statistics =
      compileBundle(
          module, llvm::StringRef(path),
          [&](const rt::ProgramDescription &description, TensorMap &tensors, std::string &error) {
            return impl->getTensors(description, tensors, error);
          },
          options);
  if (failed(statistics))
    return collector.take();
  return {{statistics->kernels, statistics->cached, std::move(statistics->compiled),
           statistics->entryMilliseconds},
          collector.take()};
}

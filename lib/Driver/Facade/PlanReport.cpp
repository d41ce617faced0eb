//===- PlanReport.cpp - reports on plans ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/lib/Driver/Facade/PlanImpl.h"
#include "meshwright/lib/Report/Peers.h"
#include "meshwright/lib/Support/RunPasses.h"
#include "meshwright/passes/Pipeline.h"
#include "meshwright/passes/schedule/PlannedMemory.h"
#include "meshwright/passes/schedule/ReportProgram.h"
#include "meshwright/passes/schedule/ReportSchedule.h"
#include "meshwright/runtime/include/PlainNumbers.h"

#include "mlir/Pass/PassManager.h"

using namespace meshwright;
using mlir::failed;
using mlir::failure;
using mlir::FailureOr;
using mlir::LogicalResult;
using mlir::ModuleOp;
using mlir::success;

/// Returns the traffic of an entry in the plan that a report compares with: without sequence
/// parallelism and without the rewrites of *optimise*.
static std::optional<Traffic> planBefore(const Plan::Impl &impl, llvm::StringRef entry) {
  if (auto known = impl.plain.find(getEntry(impl.get(PlanPhase::Spmd), entry).getName());
      known != impl.plain.end())
    return known->second;
  const Program::Impl &program = *impl.program;
  ParallelizeOptions options = *impl.options;
  std::unique_ptr<mlir::MLIRContext> context = createContext();
  DiagnosticCollector ignored(context.get());
  mlir::OwningOpRef<ModuleOp> module = program.cloneInto(context.get());
  if (!module)
    return std::nullopt;
  if (!program.isSpmd) {
    options.sequenceParallel = OnOffAuto::Off;
    mlir::PassManager manager(context.get());
    // The plan itself is verified behind the same phases.
    manager.enableVerifier(false);
    buildParallelizePipeline(manager, options, Phase::Partitioned);
    if (failed(manager.run(*module)))
      return std::nullopt;
  }
  FailureOr<Traffic> traffic = countTraffic(getEntry(*module, entry));
  if (failed(traffic))
    return std::nullopt;
  return *traffic;
}

std::string meshwright::toString(const Report &report, ReportFormat format, bool verbose) {
  rt::PlainNumbers plain;
  std::string text;
  llvm::raw_string_ostream os(text);
  if (format == ReportFormat::Json)
    printJson(report, os);
  else
    printText(report, os, verbose);
  return text;
}

/// Adds the schedule to the report on an entry: times, memory, and the decisions about collectives.
static void reportSchedule(const Plan::Impl &impl, llvm::StringRef entry, Report &report) {
  dist::DistDialect::getDecisionLog(impl.context.get()).clear();
  // A program that cannot be scheduled reports its errors when it is compiled.
  DiagnosticCollector ignored(impl.context.get());
  mlir::OwningOpRef<ModuleOp> scheduled = impl.schedule();
  if (!scheduled)
    return;
  auto func = llvm::dyn_cast<mlir::func::FuncOp>(*getEntry(*scheduled, entry));
  if (!func)
    return;
  addSchedule(getEntry(impl.get(impl.getExecutedPhase()), entry), func, report);
  if (report.fetches)
    report.fetches->ceiling = impl.options->memoryCeiling;
  addDecisions(report, impl.context.get(), [](const Decision &decision) { return decision.subject == Subject::Program; });
  if (report.fetches && report.fetches->ceiling)
    report.fetches->least = impl.findLeastCeiling();
}

/// Makes the report of a program that runs as it is. A program for one rank sends nothing.
static LogicalResult reportAsIs(Plan::Impl &impl, std::vector<Diagnostic> &diagnostics) {
  mlir::FunctionOpInterface entry = getEntry(impl.get(impl.getExecutedPhase()));
  if (entry->hasAttr(dist::DistDialect::kSpmdAttr)) {
    DiagnosticCollector collector(impl.context.get());
    FailureOr<Report> report = buildReport(entry);
    std::vector<Diagnostic> found = collector.take();
    diagnostics.insert(diagnostics.end(), found.begin(), found.end());
    if (failed(report))
      return failure();
    report->takeRun(std::move(impl.report));
    impl.report = std::move(*report);
  }
  impl.report.memory = planSessionMemory(entry);
  return success();
}

LogicalResult Plan::Impl::completeReportLocked(std::vector<Diagnostic> &diagnostics) {
  if (isComplete)
    return success();
  if (!options) {
    if (failed(reportAsIs(*this, diagnostics)))
      return failure();
  } else {
    report.before = planBefore(*this, "");
    reportSchedule(*this, "", report);
    TriedPrograms::dropLaunches(context.get());
  }
  isComplete = true;
  return success();
}

LogicalResult Plan::Impl::completeReport(std::vector<Diagnostic> &diagnostics) {
  std::lock_guard<std::mutex> lock(mutex);
  return completeReportLocked(diagnostics);
}

/// Makes the report on an entry that is not the default one. The decisions are those of the plan.
static FailureOr<Report> reportOther(const Plan::Impl &impl, llvm::StringRef name) {
  DiagnosticCollector ignored(impl.context.get());
  mlir::FunctionOpInterface entry = getEntry(impl.get(impl.getExecutedPhase()), name);
  if (!entry)
    return failure();
  Report report;
  if (entry->hasAttr(dist::DistDialect::kSpmdAttr)) {
    FailureOr<Report> built = buildReport(entry);
    if (failed(built))
      return failure();
    report = std::move(*built);
  }
  report.target = impl.target;
  report.decisions = impl.report.decisions;
  if (!impl.options) {
    report.memory = planSessionMemory(entry);
    return report;
  }
  report.before = planBefore(impl, name);
  auto decisions = report.decisions;
  reportSchedule(impl, name, report);
  report.decisions = std::move(decisions);
  return report;
}

/// Adds the launches and buffers of an entry to the report on it.
static void addProgram(const Plan::Impl &impl, llvm::StringRef name, Report &report) {
  DiagnosticCollector ignored(impl.context.get());
  mlir::OwningOpRef<ModuleOp> scheduled = impl.schedule();
  auto func = scheduled ? llvm::dyn_cast<mlir::func::FuncOp>(*getEntry(*scheduled, name)) : mlir::func::FuncOp();
  if (!func || !isPlanned(func))
    return;
  if (report.layouts.empty())
    report.layouts = listLayouts(func);
  report.program = reportProgram(func, report.layouts);
  addShards(func, report.layouts);
  report.program->sent = countPeers(getEntry(impl.get(impl.getExecutedPhase()), name));
}

std::string Plan::report(ReportFormat format, std::string_view entry, bool verbose) const {
  std::lock_guard<std::mutex> lock(impl->mutex);
  std::vector<Diagnostic> ignored;
  if (failed(impl->completeReportLocked(ignored)))
    return "";
  bool isDefault = entry.empty() || entry == getEntries().front().name;
  bool hasProgram = verbose && format == ReportFormat::Json;
  if (isDefault && !hasProgram)
    return toString(impl->report, format, verbose);
  FailureOr<Report> report = isDefault ? FailureOr<Report>(impl->report) : reportOther(*impl, entry);
  if (failed(report))
    return "";
  if (hasProgram)
    addProgram(*impl, entry, *report);
  return toString(*report, format, verbose);
}

//===- ReportCommunication.cpp - communication and memory of a program ----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Report/Report.h"
#include "meshwright/passes/report/Passes.h"

namespace meshwright {
#define GEN_PASS_DEF_REPORTCOMMUNICATIONPASS
#include "meshwright/passes/report/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

/// The entry of that name, or the default entry of the SPMD program if the name is empty.
static FailureOr<FunctionOpInterface> getFunction(ModuleOp module, StringRef name) {
  SmallVector<FunctionOpInterface> functions = llvm::filter_to_vector(
      nn::getEntries(module), [](FunctionOpInterface function) {
        return function->hasAttr(dist::DistDialect::kSpmdAttr);
      });
  if (functions.empty())
    return emitError(module.getLoc(),
                     "report on communication: expected an SPMD function, one with "
                     "'dist.spmd', got none");
  if (name.empty())
    return functions.front();
  for (FunctionOpInterface function : functions)
    if (function.getName() == name)
      return function;
  InFlightDiagnostic error = emitError(module.getLoc(), "report on communication: the program "
                                                        "has no entry '")
                             << name << "'";
  for (FunctionOpInterface function : functions)
    error.attachNote(function.getLoc()) << "it has '" << function.getName() << "'";
  return error;
}

std::string meshwright::checkReportFile(StringRef file) {
  if (!file.ends_with_insensitive(".html") && !file.ends_with_insensitive(".htm"))
    return "";
  return ("cannot write report '" + file + "' as a page: expected a name that ends in .json, for JSON, or another "
          "one, for text; sharding-run --report=FILE.html and Plan.save_report in Python write pages").str();
}

namespace {
struct ReportCommunicationPass
    : meshwright::impl::ReportCommunicationPassBase<ReportCommunicationPass> {
  using ReportCommunicationPassBase::ReportCommunicationPassBase;
  ReportCommunicationPass(ReportCommunicationPassOptions options, ScheduleReporter addSchedule)
      : ReportCommunicationPassBase(std::move(options)), addSchedule(std::move(addSchedule)) {}

  LogicalResult initialize(MLIRContext *context) override {
    std::string error = checkReportFile(file);
    return error.empty() ? success() : emitError(UnknownLoc::get(context), error);
  }

  void runOnOperation() override {
    markAllAnalysesPreserved();
    FailureOr<FunctionOpInterface> function = getFunction(getOperation(), entry);
    if (failed(function))
      return signalPassFailure();
    FailureOr<Report> report = buildReport(*function);
    if (failed(report))
      return signalPassFailure();
    if (addSchedule)
      addSchedule(*function, *report);
    if (failed(writeReport(*report, file, [&](const Twine &message) -> LogicalResult {
          return emitError(getOperation().getLoc(), message);
        })))
      signalPassFailure();
  }

private:
  ScheduleReporter addSchedule;
};
} // namespace

std::unique_ptr<Pass>
meshwright::createReportCommunicationPass(ReportCommunicationPassOptions options,
                                          ScheduleReporter addSchedule) {
  return std::make_unique<ReportCommunicationPass>(std::move(options), std::move(addSchedule));
}

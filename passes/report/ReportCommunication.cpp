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

/// The SPMD function that the report describes: `main`, or the only one.
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

namespace {
struct ReportCommunicationPass
    : meshwright::impl::ReportCommunicationPassBase<ReportCommunicationPass> {
  using ReportCommunicationPassBase::ReportCommunicationPassBase;
  ReportCommunicationPass(ReportCommunicationPassOptions options, PlanMemory planMemory)
      : ReportCommunicationPassBase(std::move(options)), planMemory(std::move(planMemory)) {}

  void runOnOperation() override {
    markAllAnalysesPreserved();
    FailureOr<FunctionOpInterface> function = getFunction(getOperation(), entry);
    if (failed(function))
      return signalPassFailure();
    FailureOr<Report> report = buildReport(*function);
    if (failed(report))
      return signalPassFailure();
    if (planMemory)
      report->memory = planMemory(*function);
    if (failed(writeReport(*report, file, [&](const Twine &message) -> LogicalResult {
          return emitError(getOperation().getLoc(), message);
        })))
      signalPassFailure();
  }

private:
  PlanMemory planMemory;
};
} // namespace

std::unique_ptr<Pass>
meshwright::createReportCommunicationPass(ReportCommunicationPassOptions options,
                                          PlanMemory planMemory) {
  return std::make_unique<ReportCommunicationPass>(std::move(options), std::move(planMemory));
}

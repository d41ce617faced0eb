//===- ReportSchedule.cpp - times and memory of a schedule ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/ReportSchedule.h"

#include "meshwright/dialects/Nn/Call.h"
#include "meshwright/passes/schedule/Pipeline.h"
#include "meshwright/passes/schedule/PlannedMemory.h"
#include "meshwright/passes/schedule/ReportFetches.h"

using namespace mlir;
using namespace meshwright;

/// The weights and gradients of a function that travel in the launch of another one.
static int64_t countFollowers(FunctionOpInterface function) {
  int64_t followers = 0;
  function->walk([&](dist::CollectiveOpInterface collective) {
    if (collective.getRole() != dist::CollectiveRole::Data)
      followers += collective->getNumOperands() - 1;
  });
  return followers;
}

void meshwright::addSchedule(FunctionOpInterface entry, func::FuncOp planned, Report &report) {
  report.communication = CommunicationEstimate();
  report.memory = withPlan(std::move(report.memory), planned);
  auto module = entry->getParentOfType<ModuleOp>();
  for (nn::CallStep step : nn::getSteps(planned)) {
    auto function = cast<func::FuncOp>(*step.function);
    report.communication->add(step.getRuns(), estimateCommunication(function));
    // The schedule joins launches, too.
    auto before = module.lookupSymbol<func::FuncOp>(function.getName());
    report.total.launches -= step.getRuns() * (countFollowers(step.function) - countFollowers(before));
    if (function != planned)
      report.memory.activationsPeak = std::max(report.memory.activationsPeak,
                                               withPlan(report.memory, function).activationsPeak);
  }
  if ((report.fetches = reportFetches(planned)))
    report.fetches->peak = report.memory.getAll();
}

//===- Passes.h - passes that report -----------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_REPORT_PASSES_H
#define MESHWRIGHT_PASSES_REPORT_PASSES_H

#include "meshwright/lib/Report/Report.h"
#include "meshwright/lib/Support/OptionParser.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

#include <functional>

template <>
class llvm::cl::parser<meshwright::Outcome>
    : public meshwright::TextOptionParser<meshwright::Outcome> {
public:
  using TextOptionParser::TextOptionParser;
};

namespace meshwright {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "meshwright/passes/report/Passes.h.inc"

/// Returns the error about a file that no report can be written to because of its name; empty if there is none.
std::string checkReportFile(llvm::StringRef file);

/// Adds to the report on an SPMD function the parts that its schedule decides. The schedule phase knows
/// them, so passes/Pipeline.cpp supplies this function.
using ScheduleReporter = std::function<void(mlir::FunctionOpInterface, Report &)>;

/// Without `addSchedule` there are no times, and each value counts from its definition to its last use.
std::unique_ptr<mlir::Pass> createReportCommunicationPass(ReportCommunicationPassOptions options,
                                                          ScheduleReporter addSchedule);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_REPORT_PASSES_H

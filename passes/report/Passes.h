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

/// Returns the memory of an SPMD function as it is scheduled. The schedule phase knows it,
/// so passes/Pipeline.cpp supplies this function.
using PlanMemory = std::function<Memory(mlir::FunctionOpInterface)>;

/// Without `planMemory`, each value counts from its definition to its last use.
std::unique_ptr<mlir::Pass> createReportCommunicationPass(ReportCommunicationPassOptions options,
                                                          PlanMemory planMemory);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_REPORT_PASSES_H

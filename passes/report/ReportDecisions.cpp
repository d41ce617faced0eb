//===- ReportDecisions.cpp - decisions as remarks -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Support/NumberText.h"
#include "meshwright/passes/report/Passes.h"

#include "llvm/ADT/STLExtras.h"

namespace meshwright {
#define GEN_PASS_DEF_REPORTDECISIONSPASS
#include "meshwright/passes/report/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;

namespace {
struct ReportDecisionsPass : meshwright::impl::ReportDecisionsPassBase<ReportDecisionsPass> {
  using ReportDecisionsPassBase::ReportDecisionsPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (const Decision &decision : dist::DistDialect::getDecisionLog(&getContext()).get()) {
      if (!outcomes.empty() && !llvm::is_contained(outcomes, decision.outcome))
        continue;
      InFlightDiagnostic remark = emitRemark(decision.location)
                                  << "[" << decision.pass << "] " << stringify(decision.outcome) << ": "
                                  << decision.message;
      auto print = [](Diagnostic &diagnostic, auto &numbers) {
        if (numbers.empty())
          return;
        diagnostic << " (";
        llvm::interleave(
            numbers,
            [&](auto &number) {
              diagnostic << number.first << " = " << formatNumber(number.first, number.second);
            },
            [&] { diagnostic << ", "; });
        diagnostic << ")";
      };
      print(*remark.getUnderlyingDiagnostic(), decision.numbers);
      for (const Alternative &alternative : decision.alternatives) {
        Diagnostic &note = remark.attachNote(decision.location);
        note << (alternative.chosen ? "chosen: " : "alternative: ") << alternative.name;
        if (!alternative.note.empty())
          note << ", " << alternative.note;
        print(note, alternative.numbers);
      }
    }
  }
};
} // namespace

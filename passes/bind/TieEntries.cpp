//===- TieEntries.cpp - one sharding for a value of several functions -----===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/bind/Passes.h"

#include "llvm/Support/FormatVariadic.h"

namespace meshwright {
#define GEN_PASS_DEF_TIEENTRIESPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using dist::DistDialect;

static std::string spell(Attribute attr) {
  std::string text;
  llvm::raw_string_ostream(text) << attr;
  return text;
}

namespace {
struct TieEntriesPass : meshwright::impl::TieEntriesPassBase<TieEntriesPass> {
  using TieEntriesPassBase::TieEntriesPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    SmallVector<func::FuncOp> functions = getGlobalFunctions(getOperation());
    for (func::FuncOp func : functions)
      if (!func.getBody().hasOneBlock())
        return;
    auto values = getSharedValues(functions);
    if (failed(values))
      return signalPassFailure();
    SignatureAttrs signatures;
    for (const SharedValue &value : *values) {
      if (keepFirst) {
        if (Attribute first = takeFirst(value))
          setSharding(value, first, signatures);
        continue;
      }
      auto stated = getStatedSharding(value);
      if (failed(stated))
        return signalPassFailure();
      if (*stated)
        setSharding(value, (*stated)->attr, signatures);
    }
  }

private:
  Attribute takeFirst(const SharedValue &value);
};
} // namespace

/// The sharding of the first place of a value that has one; null if none has.
Attribute TieEntriesPass::takeFirst(const SharedValue &value) {
  SmallVector<StatedSharding> stated = getStatedShardings(value);
  for (const StatedSharding &other : stated)
    if (other.attr != stated.front().attr)
      DistDialect::getDecisionLog(&getContext())
          .add("tie-entries", Outcome::Note, other.place,
               llvm::formatv("{0} would be laid out as {1} here, but is as {2} in all functions, "
                             "as in the first one",
                             value.describe(), spell(other.attr), spell(stated.front().attr))
                   .str());
  return stated.empty() ? Attribute() : stated.front().attr;
}

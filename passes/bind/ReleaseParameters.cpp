//===- ReleaseParameters.cpp - trained parameters as plain state ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/SignatureAttrs.h"
#include "meshwright/passes/bind/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {
#define GEN_PASS_DEF_RELEASEPARAMETERSPASS
#include "meshwright/passes/bind/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using nn::NnDialect;

namespace {
struct ReleaseParametersPass
    : meshwright::impl::ReleaseParametersPassBase<ReleaseParametersPass> {
  void runOnOperation() override {
    bool changed = false;
    SignatureAttrs signatures;
    for (auto func : getOperation().getOps<func::FuncOp>())
      for (unsigned i = 0; i < func.getNumArguments(); ++i) {
        if (!func.getArgAttr(i, NnDialect::kStateAttr) ||
            !func.getArgAttr(i, NnDialect::kParameterAttr))
          continue;
        for (StringRef name : {NnDialect::kAliasesAttr, NnDialect::kMagnitudeAttr,
                               NnDialect::kParameterAttr})
          signatures.setArgument(func, i, name, nullptr);
        changed = true;
      }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

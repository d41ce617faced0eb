//===- LimitExperts.cpp - bound the tokens that an expert takes -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

#include <cmath>

using namespace mlir;
using namespace meshwright;

namespace meshwright {
#define GEN_PASS_DEF_LIMITEXPERTSPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// Bounds the choices of a routing, for all ops that route by them.
static void limit(Value choices, nn::DispatchOp dispatch, double factor) {
  auto type = cast<RankedTensorType>(choices.getType());
  int64_t experts = dispatch.getType().getDimSize(0), count = type.getNumElements();
  auto capacity = int64_t(std::floor(factor * double(count) / double(experts)));
  OpBuilder builder(dispatch);
  builder.setInsertionPointAfterValue(choices);
  // All ranks need all choices, which so are small.
  auto narrow = type.clone(builder.getI32Type());
  Value small = choices;
  if (type != narrow)
    small = nn::CastOp::create(builder, dispatch.getLoc(), narrow, choices);
  auto bound = nn::LimitOp::create(builder, dispatch.getLoc(), narrow, small,
                                   builder.getI64IntegerAttr(capacity), IntegerAttr());
  choices.replaceUsesWithIf(bound.getResult(), [](OpOperand &use) {
    return isa<nn::DispatchOp, nn::CombineOp>(use.getOwner());
  });
  dist::DistDialect::getDecisionLog(builder.getContext())
      .add("limit-experts", Outcome::Applied, dispatch.getLoc(),
           llvm::formatv("an expert takes at most {0} of {1} choices", capacity, count).str(),
           {{"capacity", double(capacity)}, {"choices", double(count)}});
}

namespace {
struct LimitExpertsPass : meshwright::impl::LimitExpertsPassBase<LimitExpertsPass> {
  using LimitExpertsPassBase::LimitExpertsPassBase;

  void runOnOperation() override {
    if (nn::getServingSizes(getOperation())) {
      emitError(getOperation().getLoc())
          << "expert-capacity: expected none for a program that serves, got " << double(factor)
          << ": a limit would let requests change each other";
      return signalPassFailure();
    }
    for (func::FuncOp func : getGlobalFunctions(getOperation())) {
      llvm::MapVector<Value, nn::DispatchOp> routings;
      for (auto dispatch : func.front().getOps<nn::DispatchOp>())
        routings.insert({dispatch.getIndices(), dispatch});
      for (auto [choices, dispatch] : routings)
        limit(choices, dispatch, factor);
    }
  }
};
} // namespace

//===- NarrowRows.cpp - round rows of experts before their sum ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Factors/FactorAnalysis.h"
#include "meshwright/lib/Support/TensorValues.h"
#include "meshwright/passes/annotate/Passes.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace meshwright;

namespace meshwright {
#define GEN_PASS_DEF_NARROWROWSPASS
#include "meshwright/passes/annotate/Passes.h.inc"
} // namespace meshwright

/// Rounds the rows of a sum whose only use, behind reshapes, rounds it to fewer bits.
static bool narrow(nn::CombineOp op) {
  auto onlyUser = [](Value value) { return value.hasOneUse() ? *value.user_begin() : nullptr; };
  SmallVector<nn::ReshapeOp, 2> reshapes;
  Operation *user = onlyUser(op.getResult());
  while (auto reshape = dyn_cast_or_null<nn::ReshapeOp>(user)) {
    reshapes.push_back(reshape);
    user = onlyUser(reshape.getResult());
  }
  auto round = dyn_cast_or_null<nn::CastOp>(user);
  if (!round || round.getParts())
    return false;
  Type wide = getElementTypeOrSelf(op.getType()), small = getElementTypeOrSelf(round.getType());
  if (!isa<FloatType>(small) || !isa<FloatType>(wide) ||
      small.getIntOrFloatBitWidth() >= wide.getIntOrFloatBitWidth())
    return false;
  OpBuilder builder(op);
  Value rows = op.getRows();
  op.getRowsMutable().assign(
      nn::CastOp::create(builder, op.getLoc(), typeOf(rows).clone(small), rows).getResult());
  op.getResult().setType(op.getType().clone(small));
  for (nn::ReshapeOp reshape : reshapes)
    reshape.getResult().setType(reshape.getType().clone(small));
  round.getResult().replaceAllUsesWith(round.getInput());
  round->erase();
  return true;
}

namespace {
struct NarrowRowsPass : meshwright::impl::NarrowRowsPassBase<NarrowRowsPass> {
  void runOnOperation() override {
    for (func::FuncOp func : getGlobalFunctions(getOperation())) {
      SmallVector<nn::CombineOp> sums(func.front().getOps<nn::CombineOp>());
      int64_t count = llvm::count_if(sums, narrow);
      if (count > 0)
        dist::DistDialect::getDecisionLog(func.getContext())
            .add("narrow-rows", Outcome::Applied, func.getLoc(),
                 llvm::formatv("{0} sums over experts add rows of the type of their result", count).str(),
                 {{"sums", double(count)}});
    }
  }
};
} // namespace

//===- MoveTrueRows.cpp - ranks exchange the true rows of groups ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/passes/optimise/Passes.h"

#include "mlir/IR/Builders.h"

namespace meshwright {
#define GEN_PASS_DEF_MOVETRUEROWSPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Returns true if a collective moves one value along a dimension, and a rank has an equal part of the rows
/// of one group.
template <typename Collective, typename Counted>
static bool canCount(Collective collective, Counted counted, Value part, Value ofGroups) {
  if (!collective || collective->getNumOperands() != 1 || collective.getDims()[0] != int64_t(counted.getDim()))
    return false;
  int64_t dim = counted.getDim();
  auto sizeOf = [&](Value value) { return cast<RankedTensorType>(value.getType()).getDimSize(dim); };
  int64_t groups = cast<RankedTensorType>(counted.getCounts().getType()).getDimSize(0);
  int64_t tokens = counted.getTokens();
  return sizeOf(ofGroups) == groups * tokens && tokens % sizeOf(part) == 0;
}

/// Returns true if the groups are those of one replica.
template <typename Counted> static bool hasOneReplica(Counted counted, Value ofReplicas) {
  return cast<RankedTensorType>(ofReplicas.getType()).getDimSize(counted.getDim()) == int64_t(counted.getRows());
}

static bool gather(CompactOp op) {
  auto gather = op.getInput().getDefiningOp<AllGatherOp>();
  if (!hasOneReplica(op, op.getResult()) ||
      !canCount(gather, op, gather ? gather->getOperand(0) : Value(), op.getInput()))
    return false;
  OpBuilder builder(op);
  Value rows = gather->getOperand(0);
  auto made = AllGatherVOp::create(
      builder, op.getLoc(), TypeRange{op.getType(), op.getCounts().getType()},
      ValueRange{rows, op.getCounts()}, gather.getAxesAttr(), op.getTokensAttr(), op.getRowsAttr(),
      builder.getDenseI64ArrayAttr(op.getDim()), gather.getRoleAttr());
  op.getResult().replaceAllUsesWith(made->getResult(0));
  op.erase();
  if (gather->use_empty())
    gather.erase();
  return true;
}

static bool scatter(ReduceScatterOp op) {
  auto expand = op->getOperand(0).getDefiningOp<ExpandOp>();
  if (!expand || !hasOneReplica(expand, expand.getInput()) ||
      !canCount(op, expand, op->getResult(0), expand.getResult()))
    return false;
  OpBuilder builder(op);
  auto made = ReduceScatterVOp::create(
      builder, op.getLoc(), TypeRange{op->getResult(0).getType(), expand.getCounts().getType()},
      ValueRange{expand.getInput(), expand.getCounts()}, op.getReductionAttr(), op.getAxesAttr(),
      expand.getTokensAttr(), expand.getRowsAttr(), builder.getDenseI64ArrayAttr(expand.getDim()),
      op.getRoleAttr());
  if (Attribute id = op->getDiscardableAttr("nn.id"))
    made->setDiscardableAttr("nn.id", id);
  op->getResult(0).replaceAllUsesWith(made->getResult(0));
  op.erase();
  if (expand->use_empty())
    expand.erase();
  return true;
}

/// Sums true rows before they go to their places.
static bool reduceBefore(AllReduceOp op) {
  auto expand = op->getNumOperands() == 1 ? op->getOperand(0).getDefiningOp<ExpandOp>() : ExpandOp();
  if (!expand || !expand->hasOneUse())
    return false;
  OpBuilder builder(op);
  Value rows = expand.getInput();
  auto made = AllReduceOp::create(builder, op.getLoc(), TypeRange(rows.getType()), rows, op.getReductionAttr(),
                                  op.getAxesAttr(), op.getRoleAttr());
  moveOpAfter(expand, made);
  expand->setOperand(0, made->getResult(0));
  op->getResult(0).replaceAllUsesWith(expand.getResult());
  op.erase();
  return true;
}

namespace {
struct MoveTrueRowsPass : meshwright::impl::MoveTrueRowsPassBase<MoveTrueRowsPass> {
  using MoveTrueRowsPassBase::MoveTrueRowsPassBase;

  void runOnOperation() override {
    bool changed = false;
    for (Operation &op : llvm::make_early_inc_range(getOperation().getBody().getOps())) {
      if (auto compact = dyn_cast<CompactOp>(op))
        changed |= gather(compact);
      else if (auto reduced = dyn_cast<ReduceScatterOp>(op))
        changed |= scatter(reduced);
      else if (auto whole = dyn_cast<AllReduceOp>(op))
        changed |= reduceBefore(whole);
    }
    if (!changed)
      markAllAnalysesPreserved();
  }
};
} // namespace

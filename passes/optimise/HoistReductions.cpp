//===- HoistReductions.cpp - sums over ranks begin early ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The update of a training step reads gradients behind the backward pass. A gradient that the update
// wants in shards, or adds to those of other microbatches, is reduced there. All these reductions
// would share one launch, beside which no work is left. So each reduction moves up to where its
// terms are known, with the cheap ops between.
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/lib/Support/MoveOps.h"
#include "meshwright/passes/optimise/Passes.h"

#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

namespace meshwright {
#define GEN_PASS_DEF_HOISTREDUCTIONSPASS
#include "meshwright/passes/optimise/Passes.h.inc"
} // namespace meshwright

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// Returns true if the op may move up with the reduction that it serves.
static bool mayMoveWithReduction(Operation *op) {
  return isPure(op) && op->getNumRegions() == 0 &&
         (op->hasTrait<Elementwise>() || op->hasTrait<MovesOnly>() || op->getNumOperands() == 0);
}

/// Moves a reduction behind the last op that it waits for. Cheap ops that serve it alone move, too.
static void hoist(Operation *reduction) {
  llvm::SetVector<Operation *> moved;
  moved.insert(reduction);
  Operation *last = nullptr;
  for (size_t i = 0; i < moved.size(); ++i)
    for (Value operand : moved[i]->getOperands()) {
      Operation *def = operand.getDefiningOp();
      if (def && def->hasOneUse() && mayMoveWithReduction(def))
        moved.insert(def);
      else if (def && (!last || last->isBeforeInBlock(def)))
        last = def;
    }
  if (!last)
    return;
  // Ops above it stay.
  SmallVector<Operation *> order = llvm::filter_to_vector(
      moved, [&](Operation *op) { return last->isBeforeInBlock(op); });
  llvm::sort(order, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  for (Operation *op : order) {
    moveOpAfter(op, last);
    last = op;
  }
}

namespace {
struct HoistReductionsPass : meshwright::impl::HoistReductionsPassBase<HoistReductionsPass> {
  void runOnOperation() override {
    func::FuncOp func = getOperation();
    if (!getSpmdMeshSymbol(func) || func.isDeclaration())
      return markAllAnalysesPreserved();
    SmallVector<Operation *> reductions;
    for (Operation &op : func.front())
      if (auto collective = dyn_cast<CollectiveOpInterface>(op);
          collective && collective.communicates() &&
          collective.getReduction() == ReductionKind::Sum)
        reductions.push_back(&op);
    for (Operation *reduction : reductions)
      hoist(reduction);
  }
};
} // namespace

//===- MergeReductions.cpp - one reduction for several addends ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/optimise/MergeReductions.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

/// The addends of a sum, through additions that serve it alone.
static void collect(nn::AddOp add, Type type, SmallVectorImpl<Value> &addends,
                    SmallVectorImpl<Operation *> &inner) {
  for (Value operand : {add.getLhs(), add.getRhs()}) {
    auto next = operand.getDefiningOp<nn::AddOp>();
    if (next && operand.hasOneUse() && operand.getType() == type &&
        next->getBlock() == add->getBlock()) {
      inner.push_back(next);
      collect(next, type, addends, inner);
    } else {
      addends.push_back(operand);
    }
  }
}

/// A sum over ranks that serves one addition alone.
static bool isReduction(Value value, Type type, Block *block) {
  Operation *op = value.getDefiningOp();
  if (!op || op->getNumResults() != 1 || !value.hasOneUse() || value.getType() != type ||
      op->getBlock() != block)
    return false;
  auto collective = dyn_cast<CollectiveOpInterface>(op);
  return collective && collective.getReduction() == ReductionKind::Sum;
}

static bool isSameReduction(Value a, Value b) {
  Operation *x = a.getDefiningOp(), *y = b.getDefiningOp();
  return x->getName() == y->getName() && x->getAttr("axes") == y->getAttr("axes") &&
         x->getAttr("dims") == y->getAttr("dims") &&
         cast<CollectiveOpInterface>(x).getRole() == cast<CollectiveOpInterface>(y).getRole() &&
         x->getOperand(0).getType() == y->getOperand(0).getType();
}

static bool merge(nn::AddOp root, const CostModel &model, StringRef pass) {
  Type type = root.getType();
  SmallVector<Value> addends, rest;
  SmallVector<Operation *> inner;
  collect(root, type, addends, inner);
  SmallVector<SmallVector<Value, 2>> groups;
  for (Value addend : addends) {
    if (!isReduction(addend, type, root->getBlock())) {
      rest.push_back(addend);
      continue;
    }
    auto group =
        llvm::find_if(groups, [&](auto &group) { return isSameReduction(group[0], addend); });
    if (group == groups.end())
      groups.push_back({addend});
    else
      group->push_back(addend);
  }
  if (llvm::all_of(groups, [](auto &group) { return group.size() < 2; }))
    return false;
  OpBuilder builder(root);
  Value sum;
  auto add = [&](Value value) {
    sum = sum ? nn::AddOp::create(builder, root.getLoc(), type, value, sum).getResult() : value;
  };
  for (auto &group : groups) {
    // Their partial values in the order in which they are computed.
    llvm::sort(group, [](Value a, Value b) {
      return a.getDefiningOp()->isBeforeInBlock(b.getDefiningOp());
    });
    Operation *last = group.back().getDefiningOp();
    if (group.size() == 1) {
      add(group[0]);
      continue;
    }
    Cost each = *model.getCost(last);
    Value partial;
    for (Value value : group) {
      Value operand = value.getDefiningOp()->getOperand(0);
      partial =
          partial ? nn::AddOp::create(builder, value.getLoc(), operand.getType(), partial, operand)
                        .getResult()
                  : operand;
    }
    Operation *reduction = builder.clone(*last);
    reduction->setOperand(0, partial);
    DistDialect::getDecisionLog(root.getContext())
        .add(pass, Outcome::Applied, last->getLoc(),
             std::to_string(group.size()) + " partial sums into one value share a reduction",
             {{"bytes_before", double(each.bytes * int64_t(group.size()))},
              {"bytes_after", double(each.bytes)}});
    add(reduction->getResult(0));
  }
  for (Value value : rest)
    add(value);
  // The whole sum keeps the name of the one that it replaces.
  if (Operation *op = sum.getDefiningOp(); op && isa<nn::AddOp>(op))
    op->setDiscardableAttrs(root->getDiscardableAttrDictionary());
  root.getResult().replaceAllUsesWith(sum);
  root.erase();
  for (Operation *op : inner)
    op->erase();
  for (auto &group : groups)
    if (group.size() > 1)
      for (Value value : group)
        value.getDefiningOp()->erase();
  return true;
}

bool meshwright::mergeReductions(func::FuncOp func, const CostModel &model, StringRef pass) {
  // Roots only: additions that do not serve another one alone.
  SmallVector<nn::AddOp> roots;
  func.walk([&](nn::AddOp add) {
    if (add->hasOneUse())
      if (auto user = dyn_cast<nn::AddOp>(*add->user_begin());
          user && user.getType() == add.getType() && user->getBlock() == add->getBlock())
        return;
    roots.push_back(add);
  });
  bool changed = false;
  for (nn::AddOp root : roots)
    changed |= merge(root, model, pass);
  return changed;
}

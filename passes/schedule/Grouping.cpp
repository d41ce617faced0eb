//===- Grouping.cpp - which ops are one kernel ----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/schedule/Grouping.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/passes/lower/KernelBuilder.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::lower;

/// Elementwise ops in one kernel, at most: code grows with them, and so does
/// the time to compile it.
static constexpr int64_t kMaxOps = 48;

static int64_t countOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

/// Whether computing the op again for each of several points is no loss.
static bool isCheap(Operation *op) {
  return isMovement(op) || isa<nn::NegOp, nn::AbsOp, nn::NotOp, nn::ReluOp, nn::AddOp, nn::SubOp,
                               nn::MulOp, nn::MaximumOp, nn::MinimumOp, nn::AndOp, nn::OrOp,
                               nn::XorOp, nn::CompareOp, nn::SelectOp, nn::CastOp>(op);
}

namespace {

/// Which ops run, and which are computed inside the kernel of a user.
struct Grouping {
  llvm::DenseSet<Operation *> live;
  llvm::DenseSet<Operation *> fused;

  Grouping(Block &body, bool keepProbed);

  KernelGroup getGroup(Operation *root) const {
    KernelGroup group;
    llvm::SmallDenseSet<Operation *> seen;
    add(group, seen, root);
    llvm::sort(group.ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
    group.results.assign(root->result_begin(), root->result_end());
    return group;
  }

private:
  void add(KernelGroup &group, llvm::SmallDenseSet<Operation *> &seen, Operation *op) const {
    if (!seen.insert(op).second)
      return;
    group.ops.push_back(op);
    for (Value operand : op->getOperands())
      if (Operation *producer = operand.getDefiningOp(); producer && fused.contains(producer))
        add(group, seen, producer);
  }
};

} // namespace

Grouping::Grouping(Block &body, bool keepProbed) {
  /// How often a fused op is evaluated, and how many ops are in the kernel it
  /// is part of.
  llvm::DenseMap<Operation *, int64_t> points, sizes;
  llvm::DenseMap<Operation *, Operation *> roots;
  for (Operation &op : llvm::reverse(body)) {
    bool isProbed = keepProbed && op.hasAttr(nn::NnDialect::kIdAttr);
    if (op.hasTrait<OpTrait::IsTerminator>() || isProbed ||
        llvm::any_of(op.getUsers(), [&](Operation *user) { return live.contains(user); }))
      live.insert(&op);
    if (!live.contains(&op) || !isElementwise(&op))
      continue;
    points[&op] = countOf(op.getResult(0));
    roots[&op] = &op;
    sizes[&op] = 1;
    if (isProbed)
      continue;
    // Ops that compute follow a single user; ops that cost nothing follow all.
    llvm::SmallDenseSet<Operation *> users;
    for (Operation *user : op.getUsers())
      if (live.contains(user))
        users.insert(user);
    bool follows = llvm::all_of(users, isElementwise);
    if (!isFree(&op) && !isMovement(&op))
      follows &= users.size() == 1;
    int64_t evaluated = 0;
    for (Operation *user : users)
      evaluated += isElementwise(user) ? points[user] : 0;
    if (!isFree(&op) && !isCheap(&op))
      follows &= evaluated <= points[&op];
    if (!follows)
      continue;
    Operation *root = roots[*users.begin()];
    for (Operation *user : users)
      follows &= sizes[roots[user]] < kMaxOps;
    if (!follows)
      continue;
    for (Operation *user : users)
      ++sizes[roots[user]];
    fused.insert(&op);
    points[&op] = evaluated;
    roots[&op] = root;
  }
}

std::vector<KernelGroup> meshwright::groupKernels(func::FuncOp func,
                                                  const GroupingOptions &options) {
  Block &body = func.getBody().front();
  Grouping grouping(body, options.keepProbed);
  std::vector<KernelGroup> groups;
  for (Operation &op : body.without_terminator())
    if (grouping.live.contains(&op) && !grouping.fused.contains(&op) && !rt::isView(&op) &&
        !rt::isCollective(&op) && !(isa<nn::ConstantOp>(op) && !isFree(&op)))
      groups.push_back(grouping.getGroup(&op));
  return groups;
}

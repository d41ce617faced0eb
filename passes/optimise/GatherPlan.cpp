//===- GatherPlan.cpp - where to gather sharded values --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/optimise/GatherPlan.h"

using namespace mlir;
using namespace meshwright;

GatherPlan::GatherPlan(Block &block, const TokenSharding &sharding,
                       const llvm::MapVector<Value, TokenDim> &seeds, Joins joins)
    : sharding(sharding), joins(joins) {
  for (const auto &[value, token] : seeds)
    tokens.try_emplace(value, token);
  // Downward: ops that can run on shards.
  for (Operation &op : block) {
    for (auto [i, operand] : llvm::enumerate(op.getOperands())) {
      auto it = tokens.find(operand);
      if (it == tokens.end())
        continue;
      std::optional<TokenOp> how = sharding.match(&op, i, it->second);
      if (!how)
        continue;
      // All sharded operands must be sharded as the op needs them.
      bool agree = true;
      for (auto [j, other] : llvm::enumerate(op.getOperands()))
        if (const TokenDim *token = lookup(other))
          agree &= !how->operands[j] || *how->operands[j] == *token;
      if (!agree)
        continue;
      for (auto [result, token] : llvm::zip(op.getResults(), how->results))
        tokens.try_emplace(result, token);
      ops.try_emplace(&op, std::move(*how));
      break;
    }
  }
  // Upward: values that ops need whole, and the cheapest places to gather them.
  for (Operation &op : llvm::reverse(block))
    for (Value result : op.getResults())
      if (tokens.contains(result))
        evaluate(result);
  for (BlockArgument argument : block.getArguments())
    if (tokens.contains(argument))
      evaluate(argument);
}

bool GatherPlan::isJoin(Operation *op) const {
  const TokenOp &how = ops.find(op)->second;
  Value first;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!how.operands[i] || !tokens.contains(operand) || operand == first)
      continue;
    if (first)
      return true;
    first = operand;
  }
  return false;
}

bool GatherPlan::accounts(Operation *op, Value value) const {
  if (!isJoin(op))
    return true;
  if (joins == Joins::None)
    return false;
  const TokenOp &how = ops.find(op)->second;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!how.operands[i] || !tokens.contains(operand) || operand == value)
      continue;
    Operation *other = operand.getDefiningOp(), *own = value.getDefiningOp();
    if (!own || (other && own->isBeforeInBlock(other)))
      return false;
  }
  return true;
}

/// Picoseconds of the gathers behind an op, less the time that shards save behind it.
int64_t GatherPlan::getResultTime(Operation *op) const {
  int64_t time = 0;
  for (Value result : op->getResults())
    if (auto it = entries.find(result); it != entries.end())
      time += it->second.getBest();
  return time;
}

int64_t GatherPlan::getExtra(Operation *op) const {
  return getResultTime(op) - sharding.getSaving(op, ops.find(op)->second);
}

int64_t GatherPlan::getExtraBeside(Operation *op) const {
  return getExtra(op) + std::max<int64_t>(0, getResultTime(op));
}

void GatherPlan::evaluate(Value value) {
  const TokenDim &token = tokens.find(value)->second;
  Entry entry;
  entry.here = sharding.getGatherCost(value, token).time;
  llvm::SmallPtrSet<Operation *, 4> seen;
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    const TokenOp *how = lookup(user);
    if (!how || !how->operands[use.getOperandNumber()]) {
      entry.isNeeded = true;
      continue;
    }
    if (!seen.insert(user).second)
      continue;
    ++entry.shardedUsers;
    if (how->kind == TokenOp::TakeShard || !accounts(user, value))
      continue;
    int64_t extra = getExtra(user);
    entry.below += extra;
    // Ops that add or strip padding run behind the gather in any case.
    entry.here += how->kind == TokenOp::Forward ? extra : std::min<int64_t>(0, getExtraBeside(user));
  }
  entries[value] = entry;
}

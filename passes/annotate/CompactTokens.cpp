//===- CompactTokens.cpp - layers of all ranks on true tokens -------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each op computes tokens one by one, so an op on fewer of them is the same op on another type.
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/CompactTokens.h"

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/dialects/Nn/Serving.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

namespace {

class TokenCompactor {
public:
  TokenCompactor(func::FuncOp func, const FactorAnalysis &factors, function_ref<bool(int)> isShared,
                 int64_t replicas)
      : factors(factors), isShared(isShared), replicas(replicas), builder(func.getContext()) {
    sum = *nn::getTokenSum(func);
    counts = nn::findInput(func, nn::kCountsInput);
    ids = nn::findInput(func, nn::kTokensInput);
    if (ids)
      for (const FactorClasses &classes : factors.getClasses(ids))
        tokenClasses.append(classes.begin(), classes.end());
  }

  LogicalResult run(func::FuncOp func);
  bool hasChanged() const { return !shared.empty(); }

private:
  /// The dimension of the tokens of all groups; none of a value without them.
  std::optional<int64_t> getTokenDim(Value value) const;
  bool isRouted(Operation *op) const;
  bool hasShared(Operation *op) const;
  void findOps(func::FuncOp func);
  /// The most tokens of a group.
  int64_t getCapacity() const { return cast<RankedTensorType>(ids.getType()).getDimSize(1); }
  RankedTensorType getCompactType(Value value, int64_t dim) const;
  Value compact(Value value, int64_t dim, Operation *user);
  LogicalResult rewrite(Operation *op);

  const FactorAnalysis &factors;
  function_ref<bool(int)> isShared;
  int64_t replicas, sum = 0;
  OpBuilder builder;
  BlockArgument counts, ids;
  FactorClasses tokenClasses;
  /// By the values of the function as it was.
  ProgramMap<Value, Value> compacted;
  /// The ops that see the tokens of all groups, in order.
  llvm::SetVector<Operation *> shared;
};

} // namespace

std::optional<int64_t> TokenCompactor::getTokenDim(Value value) const {
  int64_t all = cast<RankedTensorType>(ids.getType()).getNumElements();
  auto type = cast<RankedTensorType>(value.getType());
  for (auto [dim, classes] : llvm::enumerate(factors.getClasses(value)))
    if (classes == tokenClasses && type.getDimSize(dim) == all)
      return dim;
  return std::nullopt;
}

bool TokenCompactor::isRouted(Operation *op) const {
  auto has = [](TypeRange types) {
    return llvm::any_of(types, [](Type type) { return bool(nn::getRouted(type)); });
  };
  return has(op->getOperandTypes()) || has(op->getResultTypes());
}

bool TokenCompactor::hasShared(Operation *op) const {
  return llvm::any_of(factors.getFactors(op).classes,
                      [&](const FactorClasses &classes) { return llvm::any_of(classes, isShared); });
}

/// Finds the ops that see the tokens of all groups.
void TokenCompactor::findOps(func::FuncOp func) {
  auto hasTokens = [&](Value value) { return getTokenDim(value).has_value(); };
  bool routedAreShared =
      llvm::any_of(func.getOps(), [&](Operation &op) { return isRouted(&op) && hasShared(&op); });
  for (Operation &op : func.getBody().front().without_terminator())
    if (llvm::any_of(op.getOperands(), hasTokens) && (hasShared(&op) || (routedAreShared && isRouted(&op))))
      shared.insert(&op);
}

RankedTensorType TokenCompactor::getCompactType(Value value, int64_t dim) const {
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<int64_t> shape(type.getShape());
  shape[dim] = replicas * sum;
  return RankedTensorType::get(shape, type.getElementType(), type.getEncoding());
}

Value TokenCompactor::compact(Value value, int64_t dim, Operation *user) {
  Value &rows = compacted[value];
  if (!rows)
    rows = CompactOp::create(builder, user->getLoc(), getCompactType(value, dim), value, counts,
                             getCapacity(), sum, dim);
  return rows;
}

/// Computes the op on the true tokens. Users that see a group's tokens alone read them at their places.
LogicalResult TokenCompactor::rewrite(Operation *op) {
  builder.setInsertionPoint(op);
  IRMapping map;
  for (Value operand : op->getOperands())
    if (std::optional<int64_t> dim = getTokenDim(operand))
      map.map(operand, compact(operand, *dim, op));
  Operation *made = builder.clone(*op, map);
  for (auto [old, result] : llvm::zip_equal(op->getResults(), made->getResults())) {
    std::optional<int64_t> dim = getTokenDim(old);
    if (!dim)
      return op->emitOpError("mixes tokens with other dimensions, which token-gather=sum does not "
                             "support yet: expected token-gather=max");
    result.setType(getCompactType(old, *dim));
    compacted[old] = result;
    // A slice takes all tokens.
    if (auto slice = dyn_cast<nn::SliceOp>(made)) {
      SmallVector<int64_t> limits(slice.getLimits());
      limits[*dim] = replicas * sum;
      slice.setLimits(limits);
    }
    auto isOther = [&](OpOperand &use) { return !shared.contains(use.getOwner()); };
    if (llvm::none_of(old.getUses(), isOther))
      continue;
    auto expanded = ExpandOp::create(builder, op->getLoc(), old.getType(), result, counts, getCapacity(), sum, *dim);
    old.replaceUsesWithIf(expanded, isOther);
  }
  return success();
}

LogicalResult TokenCompactor::run(func::FuncOp func) {
  if (!counts || !ids)
    return func.emitOpError() << "expected the inputs '" << nn::kTokensInput << "' and '"
                              << nn::kCountsInput << "' beside " << nn::kTokenSumAttr;
  findOps(func);
  for (Operation *op : shared)
    if (failed(rewrite(op)))
      return failure();
  for (Operation *op : llvm::reverse(shared.getArrayRef()))
    op->erase();
  return success();
}

LogicalResult meshwright::compactTokens(func::FuncOp func, const FactorAnalysis &factors,
                                        function_ref<bool(int)> isShared, int64_t replicas,
                                        bool &rewritten) {
  if (!nn::getTokenSum(func))
    return success();
  TokenCompactor compactor(func, factors, isShared, replicas);
  LogicalResult result = compactor.run(func);
  rewritten |= compactor.hasChanged();
  return result;
}

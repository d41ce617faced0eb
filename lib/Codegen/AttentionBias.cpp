//===- AttentionBias.cpp - biases that attention computes -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/AttentionBias.h"

#include "meshwright/lib/Codegen/Elements.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;

namespace meshwright::lower {

std::array<int64_t, 4> getBiasStrides(nn::ScoresOpInterface op) {
  std::array<int64_t, 4> strides = {0, 0, 0, 0};
  auto shape = cast<RankedTensorType>(op.getBias().getType()).getShape();
  int64_t stride = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t size = shape[shape.size() - 1 - i];
    strides[3 - i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

namespace {

/// Visits the operands of the bias, up to values that do not vary with both the query and
/// the key.
class BiasWalker {
public:
  explicit BiasWalker(const LoopSpace &space) : space(space) {}

  bool walk(Value value, const Access &access);

  llvm::SmallSetVector<Operation *, 8> ops;
  SmallVector<std::pair<Value, Access>> columnTerms;
  std::string reason;

private:
  bool variesWithColumn(const Access &access) const {
    return access.column != 0 && space.end - space.begin > 1;
  }
  bool variesWithBoth(const Access &access) const {
    return variesWithColumn(access) && access.rows[2] != 0 && space.rows[2] > 1;
  }
  bool decline(Operation *op, StringRef text) {
    reason = (op ? op->getName().getStringRef() : "an argument").str() + " " + text.str();
    return false;
  }

  LoopSpace space;
  NodeMap<bool> seen;
};

} // namespace

bool BiasWalker::walk(Value value, const Access &access) {
  if (seen.find(value, access))
    return true;
  seen.set(value, access, true);
  Operation *op = value.getDefiningOp();
  auto shape = cast<RankedTensorType>(value.getType()).getShape();
  if (op && isFree(op) && !isPaddingMask(op)) {
    ops.insert(op);
    auto iota = dyn_cast<nn::IotaOp>(op);
    if (!iota)
      return true;
    auto dims = delinearize(access, shape, space);
    if (!dims)
      return decline(op, "is read in an order that is not that of its dimensions");
    if (variesWithColumn((*dims)[iota.getDim()]))
      columnTerms.push_back({value, access});
    return true;
  }
  if (!variesWithBoth(access)) {
    if (variesWithColumn(access))
      columnTerms.push_back({value, access});
    return true;
  }
  if (!op || !isCheap(op))
    return decline(op, "has an element for each query and key");
  for (Value operand : op->getOperands()) {
    std::optional<Access> read = getOperandAccess(op, operand, access, space);
    if (!read)
      return decline(op, "is read in an order that is not that of its dimensions");
    if (!walk(operand, *read))
      return false;
  }
  ops.insert(op);
  return true;
}

/// The loops around a point of the bias, and the access of the bias there.
static std::pair<LoopSpace, Access> getPoint(nn::ScoresOpInterface op, bool queriesAreColumns) {
  auto query = cast<RankedTensorType>(op.getQuery().getType()).getShape();
  int64_t keys = cast<RankedTensorType>(op.getKey().getType()).getDimSize(2);
  std::array<int64_t, 4> strides = getBiasStrides(op);
  LoopSpace space;
  Access access;
  unsigned row = queriesAreColumns ? 3 : 2, column = queriesAreColumns ? 2 : 3;
  space.rows = {query[0], query[1], queriesAreColumns ? keys : query[2]};
  space.end = queriesAreColumns ? query[2] : keys;
  access.rows = {strides[0], strides[1], strides[row]};
  access.column = strides[column];
  return {space, access};
}

std::optional<KernelRegion> getBiasRegion(nn::ScoresOpInterface op, std::string &reason) {
  reason.clear();
  Value bias = op.getBias();
  if (!bias || !bias.getDefiningOp())
    return std::nullopt;
  auto strides = getBiasStrides(op);
  if (!strides[2] || !strides[3])
    return std::nullopt;
  auto [space, access] = getPoint(op, /*queriesAreColumns=*/false);
  BiasWalker walker(space);
  if (!walker.walk(bias, access)) {
    if (isCheap(bias.getDefiningOp()))
      reason = walker.reason;
    return std::nullopt;
  }
  // The kernel reads a bias that only stretches, or is stored, as it is.
  if (!walker.ops.contains(bias.getDefiningOp()))
    return std::nullopt;
  return KernelRegion::of(walker.ops.getArrayRef(), bias);
}

BiasPoints::BiasPoints(nn::ScoresOpInterface op, bool queriesAreColumns) {
  std::tie(space, access) = getPoint(op, queriesAreColumns);
  BiasWalker walker(space);
  walker.walk(op.getBias(), access);
  columnTerms = std::move(walker.columnTerms);
}

} // namespace meshwright::lower

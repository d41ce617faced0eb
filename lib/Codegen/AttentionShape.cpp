//===- AttentionShape.cpp - a launch of attention -------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/AttentionShape.h"

#include "meshwright/lib/Codegen/AttentionScores.h"
#include "meshwright/lib/Codegen/Elements.h"

using namespace mlir;

namespace meshwright::lower {

/// Pairs of a query and a key that it sees, by the structure of the mask.
static int64_t countVisible(const AttentionShape &shape) {
  // Chunks of a sequence may have any positions. On average over a ring, half of the pairs.
  if (shape.hasPositions)
    return shape.queries * shape.keys / (shape.right ? 2 : 1);
  int64_t count = 0;
  for (int64_t i = 0; i < shape.queries; ++i) {
    int64_t first = shape.left ? std::max<int64_t>(0, i - *shape.left) : 0;
    int64_t last = shape.right ? std::min(shape.keys, i + *shape.right + 1) : shape.keys;
    count += std::max<int64_t>(0, last - first);
  }
  return count;
}

AttentionShape::AttentionShape(nn::ScoresOpInterface op) {
  auto queryType = cast<RankedTensorType>(op.getQuery().getType());
  auto keyType = cast<RankedTensorType>(op.getKey().getType());
  auto valueType = cast<RankedTensorType>(op.getValue().getType());
  batch = queryType.getDimSize(0);
  queryHeads = queryType.getDimSize(1);
  queries = queryType.getDimSize(2);
  features = queryType.getDimSize(3);
  keyHeads = keyType.getDimSize(1);
  keyRows = keyType.getDimSize(2);
  keys = std::min<int64_t>(keyRows, op.getKvLength().value_or(keyRows));
  valueFeatures = valueType.getDimSize(3);
  hasPositions = bool(op.getQPositions());
  auto isOfRow = [](Value positions) {
    return positions && cast<RankedTensorType>(positions.getType()).getRank() == 2;
  };
  hasQueryPositionsOfRow = isOfRow(op.getQPositions());
  hasKeyPositionsOfRow = isOfRow(op.getKvPositions());
  // Windows that cover all keys hide nothing. Positions in operands are below half of the
  // largest number.
  int64_t longest = hasPositions ? int64_t(1) << 62 : std::max(queries, keys);
  auto limit = [&](std::optional<int64_t> window) {
    return window && *window < longest ? window : std::nullopt;
  };
  left = limit(op.getWindowLeft());
  right = op.getCausal() ? limit(0) : limit(op.getWindowRight());

  element = queryType.getElementType();
  compute = getComputeType(element);

  int64_t visible = countVisible(*this);
  bool isGradient = isa<nn::AttentionGradOp>(op.getOperation());
  int64_t perPair = isGradient ? 3 * features + 2 * valueFeatures : features + valueFeatures;
  flops = 2 * batch * queryHeads * visible * perPair;
  int64_t width = element.getIntOrFloatBitWidth() / 8;
  bytes = width * batch *
          (queryHeads * queries * (features + valueFeatures) +
           keyHeads * keys * (features + valueFeatures));
}

std::optional<AttentionLaunch> AttentionLaunch::of(rt::KernelOp launch) {
  AttentionLaunch found;
  size_t others = 0;
  for (Operation &inner : launch.getOps()) {
    auto scores = dyn_cast<nn::ScoresOpInterface>(inner);
    if (found.op && scores)
      return std::nullopt;
    others += !scores;
    found.op = scores ? scores : found.op;
  }
  if (!found.op)
    return std::nullopt;
  if (others > 0) {
    std::string reason;
    found.biasRegion = getBiasRegion(found.op, reason);
    if (!found.biasRegion || found.biasRegion->ops.size() != others)
      return std::nullopt;
  }
  return found;
}

SmallVector<Value> AttentionLaunch::getInputs() const {
  return llvm::map_to_vector(AttentionBuffers().getInputs(op, biasRegion),
                             [](auto member) { return member.first; });
}

SmallVector<AttentionBuffers::Member>
AttentionBuffers::getInputs(nn::ScoresOpInterface op,
                            const std::optional<KernelRegion> &biasRegion) {
  SmallVector<Member> buffers{
      {op.getQuery(), &query}, {op.getKey(), &key}, {op.getValue(), &value}};
  if (op.getKeyPadding())
    buffers.push_back({op.getKeyPadding(), &padding});
  if (op.getBias() && !biasRegion)
    buffers.push_back({op.getBias(), &bias});
  if (op.getQPositions()) {
    buffers.push_back({op.getQPositions(), &queryPositions});
    buffers.push_back({op.getKvPositions(), &keyPositions});
  }
  if (op.getKvLengths())
    buffers.push_back({op.getKvLengths(), &lengths});
  if (op.getDropRows())
    buffers.append({{op.getDropRows(), &dropRows},
                    {op.getDropKeys(), &dropKeys},
                    {op.getSeed(), &seed},
                    {op.getStep(), &step}});
  if (auto gradient = dyn_cast<nn::AttentionGradOp>(op.getOperation()))
    buffers.append({{gradient.getLse(), &lse},
                    {gradient.getDelta(), &delta},
                    {gradient.getCotangent(), &cotangent}});
  if (biasRegion)
    for (Value input : biasRegion->inputs)
      buffers.push_back({input, nullptr});
  return buffers;
}

SmallVector<AttentionBuffers::Member> AttentionBuffers::getOutputs(nn::ScoresOpInterface op) {
  if (auto gradient = dyn_cast<nn::AttentionGradOp>(op.getOperation())) {
    SmallVector<Member> buffers{{gradient.getQueryGrad(), &queryGrad},
                                {gradient.getKeyGrad(), &keyGrad},
                                {gradient.getValueGrad(), &valueGrad}};
    if (gradient.getBiasGrad())
      buffers.push_back({gradient.getBiasGrad(), &biasGrad});
    return buffers;
  }
  SmallVector<Member> buffers{{op->getResult(0), &result}};
  if (Value lseOfOp = getLogSumExp(op))
    buffers.push_back({lseOfOp, &lse});
  return buffers;
}

} // namespace meshwright::lower

//===- AttentionCall.cpp - gradients of attention, by the runtime ---------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Program/Step.h"

#include "meshwright/dialects/Nn/Nn.h"

#include "llvm/ADT/bit.h"

using namespace mlir;
using namespace meshwright;

static ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

/// Elements between neighbours of a bias along batch, head, query and key; 0 where it stretches.
static std::array<int64_t, 4> getStrides(Value bias) {
  std::array<int64_t, 4> strides = {0, 0, 0, 0};
  if (!bias)
    return strides;
  int64_t stride = 1, dim = 3;
  for (int64_t size : llvm::reverse(shapeOf(bias))) {
    strides[dim--] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

/// The elements between the positions of two rows of the batch.
static int64_t getRowStride(Value positions) {
  return positions && shapeOf(positions).size() == 2 ? shapeOf(positions).back() : 0;
}

lower::Step lower::getAttentionGrad(nn::AttentionGradOp op) {
  ArrayRef<int64_t> query = shapeOf(op.getQuery()), value = shapeOf(op.getValue());
  Step step(op, "mw_rt_run_attention_grad");
  step.passing = Step::TwoArrays;
  step.inputs = {op.getCotangent(), op.getQuery(),       op.getKey(),         op.getValue(),
                 op.getOut(),       op.getLse(),         op.getKeyPadding(),  op.getBias(),
                 op.getQPositions(), op.getKvPositions(), op.getKvLengths()};
  std::optional<APFloat> cap = op.getSoftCap();
  int64_t keys = value[2];
  auto limit = [](std::optional<int64_t> stated, int64_t none) { return stated.value_or(none); };
  step.descriptor = {getTypeCode(op.getQuery().getType().getElementType()),
                     query[0],
                     query[1],
                     value[1],
                     query[2],
                     keys,
                     query[3],
                     value[3],
                     limit(op.getWindowLeft(), -1),
                     op.getCausal() ? 0 : limit(op.getWindowRight(), -1),
                     limit(op.getKvLength(), keys),
                     bool(op.getQPositions()),
                     getRowStride(op.getQPositions()),
                     getRowStride(op.getKvPositions()),
                     bool(op.getBias()),
                     bool(op.getBiasGrad())};
  llvm::append_range(step.descriptor, getStrides(op.getBias()));
  step.descriptor.push_back(llvm::bit_cast<int64_t>(op.getScale().convertToDouble()));
  step.descriptor.push_back(llvm::bit_cast<int64_t>(cap ? cap->convertToDouble() : 0.0));
  return step;
}

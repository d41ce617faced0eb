//===- AttentionKernels.cpp - kernels of nn.attention ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Cpu/KernelScope.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

AttentionPlan::AttentionPlan(nn::ScoresOpInterface op, const Processor &processor)
    : AttentionShape(op) {
  lanes = processor.vectorBytes / (compute.getIntOrFloatBitWidth() / 8);
  bool isGradient = isa<nn::AttentionGradOp>(op.getOperation());
  // A backward pass sums over the features of values, too.
  usesDot = element.isBF16() && processor.hasBf16Dot && lanes == 16 && features % 2 == 0 &&
            (!isGradient || valueFeatures % 2 == 0);

  // Fewer rows than lanes would leave lanes empty.
  int64_t group = getGroup();
  byRow = !isGradient && group * queries < lanes;
  // If each head has a bias of its own, the rows of a block belong to one head.
  const int64_t mostRows = isGradient ? 64 : 128;
  headsPerUnit = byRow || (queries < mostRows && !op.getBias()) ? group : 1;
  units = batch * queryHeads / headsPerUnit;
  rows = headsPerUnit * queries;
  blockRows = byRow ? rows : std::min<int64_t>(mostRows, llvm::alignTo(rows, lanes));
  // Two vectors side by side.
  if (!byRow && blockRows > lanes)
    blockRows = llvm::alignTo(blockRows, 2 * lanes);
  blockKeys = byRow ? 256 : 64;
  blocks = llvm::divideCeil(rows, std::max<int64_t>(blockRows, 1));
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

AttentionEmitter::AttentionEmitter(const AttentionKernel &kernel)
    : VectorEmitter(kernel.op->getContext(), kernel.plan.lanes, kernel.plan.element, kernel.plan.compute),
      op(kernel.op), plan(kernel.plan), processor(kernel.processor), biasRegion(kernel.biasRegion) {
  if (op.getBias())
    biasStrides = getBiasStrides(op);
  if (biasRegion)
    biasElements.emplace(b, *biasRegion);
}

SmallVector<Type> AttentionEmitter::getBufferTypes() {
  SmallVector<Type> types;
  auto add = [&](Value tensor, Value *buffer) {
    auto type = cast<RankedTensorType>(tensor.getType());
    Type element = type.getElementType();
    types.push_back(MemRefType::get({type.getNumElements()},
                                    buffer ? getStorageType(element) : getRowStorageType(element)));
  };
  for (auto [tensor, buffer] : AttentionBuffers::getInputs(op, biasRegion))
    add(tensor, buffer);
  for (auto [tensor, buffer] : AttentionBuffers::getOutputs(op))
    add(tensor, buffer);
  return types;
}

void AttentionEmitter::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = 0;
  for (auto [tensor, buffer] : AttentionBuffers::getInputs(op, biasRegion)) {
    Value argument = entry.getArgument(next++);
    if (buffer)
      *buffer = argument;
    else
      biasElements->setBuffer(tensor, argument);
  }
  for (auto [tensor, buffer] : AttentionBuffers::getOutputs(op))
    *buffer = entry.getArgument(next++);
  bindWorkspace(entry.getArguments().back());
  if (op.getStream())
    random = {loadScalar(seed, getIndex(0)), loadScalar(step, getIndex(0)),
              int64_t(*op.getStream())};
  loop(entry.getArgument(next), entry.getArgument(next + 1), 1,
       [&](Value item) { emitItem(item); });
}

std::optional<KernelInfo> KernelScope::buildAttention(rt::KernelOp launch) {
  std::optional<AttentionLaunch> parsed = AttentionLaunch::of(launch);
  if (!parsed)
    return std::nullopt;
  auto &[op, biasRegion] = *parsed;
  const Processor &processor = kernels.getProcessor();
  AttentionKernel attention{op, processor, AttentionPlan(op, processor), biasRegion};
  const AttentionPlan &plan = attention.plan;
  bool isGradient = isa<nn::AttentionGradOp>(op.getOperation());
  std::unique_ptr<AttentionEmitter> emitter = isGradient   ? makeAttentionGradient(attention)
                                              : plan.byRow ? makeAttentionRows(attention)
                                                           : makeAttentionBlocks(attention);
  int64_t workspaceBytes = emitter->getWorkspaceBytes();
  func::FuncOp kernel = begin(op, emitter->getBufferTypes(), workspaceBytes);
  emitter->emit(kernel);

  KernelInfo info;
  info.inputs = parsed->getInputs();
  info.name = finish(kernel, launch, info.inputs);
  info.kind = MW_RT_ATTENTION;
  info.items = emitter->getItems();
  info.workspaceBytes = workspaceBytes;
  info.flops = plan.flops;
  info.bytes = plan.bytes;
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  return info;
}

//===----------------------------------------------------------------------===//
// The scores
//===----------------------------------------------------------------------===//

Value AttentionEmitter::exponentiate(Value scores, Value maximum) {
  Value difference = arith::SubFOp::create(b, scores, maximum);
  if (getUnit() != M_LOG2E)
    difference = arith::MulFOp::create(b, difference, getSplat(M_LOG2E));
  return exp2(difference);
}

Value AttentionEmitter::isKept(Value indices) {
  return emitIsKept(b, indices, random, op.getDropout()->convertToDouble());
}

Value AttentionEmitter::getLogSumExp(Value sum, Value maximum) {
  Value natural = arith::MulFOp::create(b, maximum, getSplat(1 / getUnit()));
  return arith::AddFOp::create(b, math::LogOp::create(b, sum), natural);
}

} // namespace meshwright::lower

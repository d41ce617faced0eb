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
    : LoopEmitter(kernel.op->getContext()), op(kernel.op), plan(kernel.plan),
      processor(kernel.processor), biasRegion(kernel.biasRegion) {
  if (op.getBias())
    biasStrides = getBiasStrides(op);
  if (biasRegion)
    biasElements.emplace(b, *biasRegion);
}

void AttentionEmitter::reserve(Region &region, int64_t count, Type type) {
  constexpr int64_t alignment = 64;
  region.offset = workspaceBytes;
  region.count = std::max<int64_t>(count, 1);
  region.type = type;
  workspaceBytes += llvm::alignTo(region.count * (type.getIntOrFloatBitWidth() / 8), alignment);
  regions.push_back(&region);
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
  Value workspace = entry.getArguments().back();
  for (Region *region : regions)
    region->buffer = memref::ViewOp::create(b, MemRefType::get({region->count}, region->type),
                                            workspace, getIndex(region->offset), ValueRange());
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
// Vectors
//===----------------------------------------------------------------------===//

Value AttentionEmitter::getScalar(double value) { return emitConstant(b, plan.compute, value); }

Value AttentionEmitter::getSplat(double value) {
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(getVector(), b.getFloatAttr(plan.compute, value)));
}

Value AttentionEmitter::splat(Value scalar) {
  return vector::BroadcastOp::create(b, getVector(plan.lanes, scalar.getType()), scalar);
}

Value AttentionEmitter::fma(Value a, Value c, Value d) {
  return LLVM::FMulAddOp::create(b, a, c, d);
}

Value AttentionEmitter::dot(Value a, Value c, Value d) {
  return LLVM::CallIntrinsicOp::create(b, getVector(),
                                       b.getStringAttr("llvm.x86.avx512bf16.dpbf16ps.512"),
                                       ValueRange{d, a, c})
      .getResult(0);
}

Value AttentionEmitter::load(Value buffer, Value index, int64_t size) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  return vector::LoadOp::create(b, getVector(size, type), buffer, index);
}

Value AttentionEmitter::loadScalar(Value buffer, Value index) {
  return memref::LoadOp::create(b, buffer, index);
}

void AttentionEmitter::store(Value value, Value buffer, Value index) {
  vector::StoreOp::create(b, value, buffer, index);
}

Value AttentionEmitter::shuffle(Value a, Value c, ArrayRef<int64_t> lanes) {
  return vector::ShuffleOp::create(b, a, c, lanes);
}

Value AttentionEmitter::resize(Value vector, int64_t size) {
  auto type = cast<VectorType>(vector.getType());
  int64_t present = type.getDimSize(0);
  if (present == size)
    return vector;
  SmallVector<int64_t> lanes;
  for (int64_t i = 0; i < size; ++i)
    lanes.push_back(i < present ? i : vector::ShuffleOp::kPoisonIndex);
  Value resized = shuffle(vector, vector, lanes);
  if (size < present)
    return resized;
  Value zeros = arith::ConstantOp::create(b, b.getZeroAttr(resized.getType()));
  for (int64_t i = 0; i < size; ++i)
    lanes[i] = i < present ? i : size + i;
  return shuffle(resized, zeros, lanes);
}

Value AttentionEmitter::larger(Value a, Value c) {
  Value above = arith::CmpFOp::create(b, arith::CmpFPredicate::OGT, a, c);
  return arith::SelectOp::create(b, above, a, c);
}

/// The shuffles of two vectors that exchange blocks of `step` lanes beside the diagonal: the
/// lanes of the first result, and of the second.
static std::array<SmallVector<int64_t>, 2> getExchange(int64_t lanes, int64_t step) {
  std::array<SmallVector<int64_t>, 2> exchange;
  for (int64_t i = 0; i < lanes; ++i) {
    bool isFirst = (i & step) == 0;
    exchange[0].push_back(isFirst ? i : lanes + i - step);
    exchange[1].push_back(isFirst ? i + step : lanes + i);
  }
  return exchange;
}

void AttentionEmitter::transpose(SmallVector<Value> &vectors) {
  for (int64_t step = 1; step < plan.lanes; step *= 2) {
    auto [lower, upper] = getExchange(plan.lanes, step);
    for (int64_t i = 0; i < plan.lanes; ++i)
      if ((i & step) == 0) {
        Value first = vectors[i], second = vectors[i + step];
        vectors[i] = shuffle(first, second, lower);
        vectors[i + step] = shuffle(first, second, upper);
      }
  }
}

Value AttentionEmitter::sumEach(SmallVector<Value> vectors) {
  for (int64_t step = 1; step < plan.lanes; step *= 2) {
    auto [lower, upper] = getExchange(plan.lanes, step);
    SmallVector<Value> sums;
    for (size_t i = 0; i < vectors.size(); i += 2)
      sums.push_back(arith::AddFOp::create(b, shuffle(vectors[i], vectors[i + 1], lower),
                                           shuffle(vectors[i], vectors[i + 1], upper)));
    vectors = std::move(sums);
  }
  return vectors.front();
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

Value AttentionEmitter::guard(Value maximum) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, maximum, lowest);
  return arith::SelectOp::create(b, isEmpty, getSplat(0), maximum);
}

Value AttentionEmitter::invert(Value sum) {
  Value zero = getSplat(0);
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
  return arith::SelectOp::create(b, isEmpty, zero, arith::DivFOp::create(b, getSplat(1), sum));
}

Value AttentionEmitter::isKept(Value indices) {
  return emitIsKept(b, indices, random, op.getDropout()->convertToDouble());
}

Value AttentionEmitter::getLogSumExp(Value sum, Value maximum) {
  Value natural = arith::MulFOp::create(b, maximum, getSplat(1 / getUnit()));
  return arith::AddFOp::create(b, math::LogOp::create(b, sum), natural);
}

} // namespace meshwright::lower

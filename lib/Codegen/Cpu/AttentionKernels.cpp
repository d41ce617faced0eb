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

/// Pairs of a query and a key that it sees, by the structure of the mask.
static int64_t countVisible(const AttentionPlan &plan) {
  // Chunks of a sequence may have any positions. On average over a ring, half of the pairs.
  if (plan.hasPositions)
    return plan.queries * plan.keys / (plan.right ? 2 : 1);
  int64_t count = 0;
  for (int64_t i = 0; i < plan.queries; ++i) {
    int64_t first = plan.left ? std::max<int64_t>(0, i - *plan.left) : 0;
    int64_t last = plan.right ? std::min(plan.keys, i + *plan.right + 1) : plan.keys;
    count += std::max<int64_t>(0, last - first);
  }
  return count;
}

AttentionPlan::AttentionPlan(nn::AttentionOp op, const Processor &processor) {
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
  auto isOfRow = [](TypedValue<RankedTensorType> positions) {
    return positions && positions.getType().getRank() == 2;
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
  lanes = processor.vectorBytes / (compute.getIntOrFloatBitWidth() / 8);
  usesDot = element.isBF16() && processor.hasBf16Dot && lanes == 16 && features % 2 == 0;

  // Fewer rows than lanes would leave lanes empty.
  int64_t group = keyHeads ? queryHeads / keyHeads : 1;
  byRow = group * queries < lanes;
  // If each head has a bias of its own, the rows of a block belong to one head.
  constexpr int64_t mostRows = 128;
  headsPerUnit = byRow || (queries < mostRows && !op.getBias()) ? group : 1;
  units = batch * queryHeads / headsPerUnit;
  rows = headsPerUnit * queries;
  blockRows = byRow ? rows : std::min<int64_t>(mostRows, llvm::alignTo(rows, lanes));
  // Two vectors side by side.
  if (!byRow && blockRows > lanes)
    blockRows = llvm::alignTo(blockRows, 2 * lanes);
  blockKeys = byRow ? 256 : 64;
  blocks = llvm::divideCeil(rows, std::max<int64_t>(blockRows, 1));

  int64_t visible = countVisible(*this);
  flops = 2 * batch * queryHeads * visible * (features + valueFeatures);
  int64_t width = element.getIntOrFloatBitWidth() / 8;
  bytes = width * batch *
          (queryHeads * queries * (features + valueFeatures) +
           keyHeads * keys * (features + valueFeatures));
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

AttentionEmitter::AttentionEmitter(const AttentionKernel &kernel)
    : op(kernel.op), plan(kernel.plan), processor(kernel.processor),
      b(UnknownLoc::get(kernel.op->getContext()), kernel.op->getContext()),
      biasRegion(kernel.biasRegion) {
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

SmallVector<std::pair<Value, Value *>> AttentionEmitter::getInputBuffers() {
  SmallVector<std::pair<Value, Value *>> buffers{
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
  if (biasRegion)
    for (Value input : biasRegion->inputs)
      buffers.push_back({input, nullptr});
  return buffers;
}

SmallVector<std::pair<Value, Value *>> AttentionEmitter::getOutputBuffers() {
  SmallVector<std::pair<Value, Value *>> buffers{{op.getResult(), &result}};
  if (op.getLse())
    buffers.push_back({op.getLse(), &lse});
  return buffers;
}

SmallVector<Value> AttentionEmitter::getInputs() {
  return llvm::map_to_vector(getInputBuffers(), [](auto buffer) { return buffer.first; });
}

SmallVector<Type> AttentionEmitter::getBufferTypes() {
  SmallVector<Type> types;
  auto add = [&](Value tensor, Value *buffer) {
    auto type = cast<RankedTensorType>(tensor.getType());
    Type element = type.getElementType();
    types.push_back(MemRefType::get({type.getNumElements()},
                                    buffer ? getStorageType(element) : getRowStorageType(element)));
  };
  for (auto [tensor, buffer] : getInputBuffers())
    add(tensor, buffer);
  for (auto [tensor, buffer] : getOutputBuffers())
    add(tensor, buffer);
  return types;
}

void AttentionEmitter::emit(func::FuncOp kernel) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToStart(&entry);
  unsigned next = 0;
  for (auto [tensor, buffer] : getInputBuffers()) {
    Value argument = entry.getArgument(next++);
    if (buffer)
      *buffer = argument;
    else
      biasElements->setBuffer(tensor, argument);
  }
  for (auto [tensor, buffer] : getOutputBuffers())
    *buffer = entry.getArgument(next++);
  Value workspace = entry.getArguments().back();
  for (Region *region : regions)
    region->buffer = memref::ViewOp::create(b, MemRefType::get({region->count}, region->type),
                                            workspace, getIndex(region->offset), ValueRange());
  loop(entry.getArgument(next), entry.getArgument(next + 1), 1,
       [&](Value item) { emitItem(item); });
}

std::optional<KernelInfo> KernelScope::buildAttention(rt::KernelOp launch) {
  nn::AttentionOp op;
  size_t others = 0;
  for (Operation &inner : launch.getOps()) {
    auto attention = dyn_cast<nn::AttentionOp>(inner);
    if (op && attention)
      return std::nullopt;
    others += !attention;
    op = attention ? attention : op;
  }
  if (!op)
    return std::nullopt;
  std::optional<KernelRegion> biasRegion;
  if (others > 0) {
    std::string reason;
    biasRegion = getBiasRegion(op, reason);
    if (!biasRegion || biasRegion->ops.size() != others)
      return std::nullopt;
  }
  const Processor &processor = kernels.getProcessor();
  AttentionKernel attention{op, processor, AttentionPlan(op, processor), biasRegion};
  const AttentionPlan &plan = attention.plan;
  std::unique_ptr<AttentionEmitter> emitter =
      plan.byRow ? makeAttentionRows(attention) : makeAttentionBlocks(attention);
  int64_t workspaceBytes = emitter->getWorkspaceBytes();
  func::FuncOp kernel = begin(op, emitter->getBufferTypes(), workspaceBytes);
  emitter->emit(kernel);

  KernelInfo info;
  info.inputs = emitter->getInputs();
  info.name = finish(kernel, launch, info.inputs);
  info.kind = MW_RT_ATTENTION;
  info.items = plan.getItems();
  info.workspaceBytes = workspaceBytes;
  info.flops = plan.flops;
  info.bytes = plan.bytes;
  info.grain = chooseGrain(info.items, info.bytes, info.flops);
  return info;
}

//===----------------------------------------------------------------------===//
// Indices and control flow
//===----------------------------------------------------------------------===//

Value AttentionEmitter::getIndex(int64_t value) { return arith::ConstantIndexOp::create(b, value); }
Value AttentionEmitter::add(Value a, Value c) { return b.createOrFold<arith::AddIOp>(a, c); }
Value AttentionEmitter::sub(Value a, Value c) { return b.createOrFold<arith::SubIOp>(a, c); }
Value AttentionEmitter::mul(Value a, int64_t c) {
  return b.createOrFold<arith::MulIOp>(a, getIndex(c));
}
Value AttentionEmitter::div(Value a, int64_t c) {
  return b.createOrFold<arith::DivUIOp>(a, getIndex(c));
}
Value AttentionEmitter::rem(Value a, int64_t c) {
  return b.createOrFold<arith::RemUIOp>(a, getIndex(c));
}
Value AttentionEmitter::min(Value a, Value c) { return b.createOrFold<arith::MinSIOp>(a, c); }
Value AttentionEmitter::max(Value a, Value c) { return b.createOrFold<arith::MaxSIOp>(a, c); }
Value AttentionEmitter::isBelow(Value a, Value c) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::slt, a, c);
}
Value AttentionEmitter::both(Value a, Value c) {
  return !a ? c : !c ? a : arith::AndIOp::create(b, a, c).getResult();
}

SmallVector<Value> AttentionEmitter::loop(Value from, Value to, int64_t step, ValueRange inits,
                                          LoopBody body) {
  auto loop = scf::ForOp::create(b, from, to, getIndex(step), inits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> results = body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!inits.empty())
    scf::YieldOp::create(b, results);
  return loop.getResults();
}

void AttentionEmitter::loop(Value from, Value to, int64_t step, function_ref<void(Value)> body) {
  loop(from, to, step, {}, [&](Value i, ValueRange) {
    body(i);
    return SmallVector<Value>();
  });
}

void AttentionEmitter::when(Value condition, function_ref<void()> body,
                            function_ref<void()> otherwise) {
  auto branch = scf::IfOp::create(b, condition, /*withElseRegion=*/bool(otherwise));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(branch.thenBlock());
  body();
  if (!otherwise)
    return;
  b.setInsertionPointToStart(branch.elseBlock());
  otherwise();
}

SmallVector<Value> AttentionEmitter::choose(Value condition,
                                            function_ref<SmallVector<Value>()> body,
                                            function_ref<SmallVector<Value>()> otherwise) {
  auto inRegion = [&](function_ref<SmallVector<Value>()> emit) {
    return [this, emit](OpBuilder &nested, Location) {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPoint(nested.getInsertionBlock(), nested.getInsertionPoint());
      scf::YieldOp::create(b, emit());
    };
  };
  auto branch = scf::IfOp::create(b, condition, inRegion(body), inRegion(otherwise));
  return branch.getResults();
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

/// Coefficients of 2^x for |x| <= 1/2, x^0 first.
static SmallVector<double> getExp2Polynomial(bool isDouble) {
  // The smallest relative error that degree 6 has: 1.9e-9.
  if (!isDouble)
    return {1.0,
            0.6931471824645996,
            0.24022646248340607,
            0.05550328642129898,
            0.009618489071726799,
            0.0013399934396147728,
            0.00015345819701906294};
  SmallVector<double> coefficients{1.0};
  for (int64_t i = 1; i <= 13; ++i)
    coefficients.push_back(coefficients.back() * M_LN2 / i);
  return coefficients;
}

Value emitExp2(ImplicitLocOpBuilder &b, Value x) {
  auto type = cast<VectorType>(x.getType());
  auto getSplat = [&](double value) { return emitConstant(b, type, value); };
  bool isDouble = type.getElementType().isF64();
  int64_t mantissa = isDouble ? 52 : 23;
  // The sum has the nearest integer in the last bits of its mantissa.
  Value magic = getSplat(1.5 * std::ldexp(1.0, mantissa));
  Value biased = arith::AddFOp::create(b, x, magic);
  Value rest = arith::SubFOp::create(b, x, arith::SubFOp::create(b, biased, magic));
  SmallVector<double> coefficients = getExp2Polynomial(isDouble);
  Value power = getSplat(coefficients.back());
  for (double coefficient : llvm::reverse(ArrayRef(coefficients).drop_back()))
    power = LLVM::FMulAddOp::create(b, power, rest, getSplat(coefficient));
  // The shift moves the integer to the exponent, and all other bits out.
  Type bits = type.clone(b.getIntegerType(isDouble ? 64 : 32));
  Value exponent = arith::ShLIOp::create(b, arith::BitcastOp::create(b, bits, biased),
                                         emitConstant(b, bits, mantissa));
  Value scaled = arith::AddIOp::create(b, arith::BitcastOp::create(b, bits, power), exponent);
  Value value = arith::BitcastOp::create(b, type, scaled);
  // Small results become zero. A NaN remains NaN; the last bits of its mantissa, as an exponent,
  // would make it a number.
  Value zero = getSplat(0);
  Value isNegative = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x, zero);
  Value instead = arith::SelectOp::create(b, isNegative, zero, x);
  Value isOutside =
      arith::CmpFOp::create(b, arith::CmpFPredicate::ULT, x, getSplat(isDouble ? -1021.5 : -125.5));
  return arith::SelectOp::create(b, isOutside, instead, value);
}

//===----------------------------------------------------------------------===//
// The scores
//===----------------------------------------------------------------------===//

double AttentionEmitter::getUnit() { return op.getBias() ? 1.0 : M_LOG2E; }

double AttentionEmitter::getFactor() {
  double scale = op.getScale().convertToDouble();
  if (auto cap = op.getSoftCap())
    return scale / cap->convertToDouble();
  return scale * getUnit();
}

Value AttentionEmitter::cap(Value scores) {
  auto cap = op.getSoftCap();
  if (!cap)
    return scores;
  Value bounded;
  if (plan.compute.isF64()) {
    // tanh x = 1 - 2 / (e^2x + 1). The C library's function computes one lane at a time.
    Value limit = getSplat(40);
    Value below = arith::MinimumFOp::create(b, scores, limit);
    below = arith::MaximumFOp::create(b, below, getSplat(-40));
    Value power = exp2(arith::MulFOp::create(b, below, getSplat(2 * M_LOG2E)));
    Value divisor = arith::AddFOp::create(b, power, getSplat(1));
    bounded = arith::SubFOp::create(b, getSplat(1), arith::DivFOp::create(b, getSplat(2), divisor));
  } else {
    bounded = math::TanhOp::create(b, scores);
  }
  return arith::MulFOp::create(b, bounded, getSplat(cap->convertToDouble() * getUnit()));
}

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

Value AttentionEmitter::getLogSumExp(Value sum, Value maximum) {
  Value natural = arith::MulFOp::create(b, maximum, getSplat(1 / getUnit()));
  return arith::AddFOp::create(b, math::LogOp::create(b, sum), natural);
}

bool AttentionEmitter::hasWideLogSumExp() {
  return op.getLse() && getElementTypeOrSelf(op.getLse().getType()) != plan.compute;
}

Value AttentionEmitter::getWideLogSumExp(Value sum, Value maximum) {
  Type wide = b.getF64Type(), word = b.getI32Type();
  auto constant = [&](Type type, double value) { return emitConstant(b, type, value); };
  // Numbers of f32 from 2^30 on are at least 64 apart. There the place of the maximum among
  // these numbers stands for it, times 32.
  constexpr double kFirst = 1 << 30;
  Value magnitude = math::AbsFOp::create(b, maximum);
  Value first = constant(word, llvm::bit_cast<int32_t>(float(kFirst)));
  Value place = arith::SubIOp::create(b, arith::BitcastOp::create(b, word, magnitude), first);
  place = arith::MulFOp::create(b, arith::SIToFPOp::create(b, wide, place), constant(wide, 32));
  place = arith::AddFOp::create(b, place, constant(wide, kFirst));
  place = math::CopySignOp::create(b, place, arith::ExtFOp::create(b, wide, maximum));
  Value isLarge = arith::CmpFOp::create(b, arith::CmpFPredicate::OGE, magnitude,
                                        constant(maximum.getType(), kFirst));
  Value exact = arith::MulFOp::create(b, arith::ExtFOp::create(b, wide, maximum),
                                      constant(wide, 1 / getUnit()));
  Value natural = arith::SelectOp::create(b, isLarge, place, exact);
  Value logarithm = math::LogOp::create(b, arith::ExtFOp::create(b, wide, sum));
  return arith::AddFOp::create(b, logarithm, natural);
}

} // namespace meshwright::lower

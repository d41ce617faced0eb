//===- AttentionKernels.cpp - kernels of nn.attention, on GPUs ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/AttentionEmitter.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"
#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

std::optional<KernelInfo> GpuKernelBuilder::buildAttention(rt::KernelOp launch) {
  std::optional<AttentionLaunch> attention = AttentionLaunch::of(launch);
  if (!attention)
    return std::nullopt;
  bool hasAlignedTiles = llvm::all_of(
      ValueRange{attention->op.getQuery(), attention->op.getKey(), attention->op.getValue()},
      [&](Value tile) { return getAlignment(tile) % 16 == 0; });
  AttentionTilePlan plan(attention->op, target.getChip().hasWgmma && hasAlignedTiles);
  std::unique_ptr<AttentionBlock> emitter;
  if (isa<nn::AttentionGradOp>(attention->op.getOperation()))
    emitter = makeAttentionGradient(*attention, plan);
  else if (plan.usesWgmma)
    emitter = makeAttentionWgmma(*attention, plan);
  else if (plan.usesMma)
    emitter = makeAttentionMma(*attention, plan);
  else
    emitter = makeAttentionFma(*attention, plan);
  KernelInfo info;
  info.inputs = attention->getInputs();
  if (plan.usesWgmma && emitter->getNumBlocks() > 0)
    info.tensorMaps = getTensorMaps(plan);
  return buildTiles(launch, *emitter, plan, std::move(info));
}

KernelInfo GpuKernelBuilder::buildTiles(rt::KernelOp launch, AttentionBlock &emitter, const AttentionTilePlan &plan,
                                        KernelInfo info) {
  info.kind = MW_RT_ATTENTION;
  info.items = emitter.getNumBlocks();
  info.grain = plan.blockThreads;
  info.flops = plan.flops;
  info.bytes = plan.bytes;
  int64_t sharedBytes = emitter.getSharedBytes();
  info.workspaceBytes = sharedBytes > kMostStaticShared ? sharedBytes : 0;
  info.scratchBytes = emitter.getScratchBytes();
  func::FuncOp kernel = begin(launch, info.inputs, sharedBytes, info.grain, /*hasFault=*/false,
                              info.tensorMaps, info.scratchBytes);
  // Two blocks of 128 threads leave each thread as many registers as an instruction can name.
  kernel->setAttr(kBlocksAttr, IntegerAttr::get(IntegerType::get(launch.getContext(), 64),
                                                plan.usesWgmma ? 1 : 2));
  if (info.items > 0)
    emitter.emit(kernel);
  info.name = writer.finish(kernel, launch, info.inputs);
  return info;
}

//===----------------------------------------------------------------------===//
// The function
//===----------------------------------------------------------------------===//

void AttentionTiles::synchronize() { emitBarrier(b); }
Value AttentionTiles::isAny(Value value) { return emitAny(b, value); }

void AttentionTiles::locate(Value block) {
  split = rem(block, plan.splits);
  whole = block = div(block, plan.splits);
  Value number = rem(block, plan.blocks), rest = div(block, plan.blocks);
  // Later blocks see more keys, and begin first.
  if (plan.right && !plan.left)
    number = sub(getIndex(plan.blocks - 1), number);
  firstRow = mul(number, plan.blockRows);
  firstFeature = mul(rem(rest, plan.slices), plan.sliceFeatures);
  unit = div(rest, plan.slices);
  keyUnit = div(unit, plan.getGroup() / plan.headsPerUnit);
  batchIndex = div(unit, plan.units / plan.batch);
}

void AttentionTiles::emitBlock(Value block) {
  locate(block);
  startBatch();
  startRows();
  emitQueries();
  emitKeys(getKeyRange());
}

SmallVector<Value> AttentionTiles::getStart() {
  SmallVector<Value> running(plan.rowsOfThread,
                             getScalar(-std::numeric_limits<double>::infinity()));
  running.append(plan.rowsOfThread, getScalar(0));
  llvm::append_range(running, getZeros());
  return running;
}

void AttentionTiles::emitKeys(std::pair<Value, Value> range) {
  if (plan.splits > 1)
    range = getOwnKeys(range);
  SmallVector<Value> running = getStart();
  running = loop(range.first, range.second, plan.blockKeys, running,
                 [&](Value key, ValueRange known) {
                   firstKey = key;
                   return emitTile(known);
                 });
  plan.splits > 1 ? writeSplit(running) : emitEnd(running);
}

//===----------------------------------------------------------------------===//
// Blocks that share keys
//===----------------------------------------------------------------------===//

std::pair<Value, Value> AttentionTiles::getOwnKeys(std::pair<Value, Value> range) {
  Value keys = max(sub(range.second, range.first), getIndex(0));
  Value tiles = div(add(keys, plan.blockKeys - 1), plan.blockKeys);
  Value share = mul(div(add(tiles, plan.splits - 1), plan.splits), plan.blockKeys);
  Value first = add(range.first, b.createOrFold<arith::MulIOp>(split, share));
  return {first, min(add(first, share), range.second)};
}

/// The elements of one of the running values, some of which are vectors.
static int64_t getNumElements(Type type) {
  auto vector = dyn_cast<VectorType>(type);
  return vector ? vector.getNumElements() : 1;
}

int64_t AttentionTiles::getScratchBytes() {
  if (plan.splits == 1)
    return 0;
  int64_t elements = 0;
  for (Value value : getStart())
    elements += getNumElements(value.getType());
  return MW_RT_COUNTER_BYTES + plan.getNumBlocks() * AttentionTilePlan::threads * elements *
                                   plan.compute.getIntOrFloatBitWidth() / 8;
}

/// Orders accesses to the memory of the GPU before it and those behind it, as seen by other blocks.
static void emitFence(ImplicitLocOpBuilder &b) {
  LLVM::FenceOp::create(b, LLVM::AtomicOrdering::acq_rel, "device");
}

SmallVector<Value> AttentionTiles::merge(ValueRange running, ValueRange other) {
  int64_t numRows = plan.rowsOfThread;
  Value zero = getScalar(0), none = getScalar(-std::numeric_limits<double>::infinity());
  SmallVector<Value> maxima, sums, ours, theirs;
  for (int64_t row = 0; row < numRows; ++row) {
    Value largest = arith::MaxNumFOp::create(b, running[row], other[row]);
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, largest, none);
    Value shift = arith::SelectOp::create(b, isEmpty, zero, largest);
    ours.push_back(exponentiate(running[row], shift));
    theirs.push_back(exponentiate(other[row], shift));
    maxima.push_back(largest);
    Value sum = arith::MulFOp::create(b, other[numRows + row], theirs.back());
    sums.push_back(math::FmaOp::create(b, running[numRows + row], ours.back(), sum));
  }
  SmallVector<Value> first = scale(running.drop_front(2 * numRows), ours);
  SmallVector<Value> second = scale(other.drop_front(2 * numRows), theirs);
  SmallVector<Value> merged(maxima);
  llvm::append_range(merged, sums);
  for (auto [a, c] : llvm::zip_equal(first, second))
    merged.push_back(arith::AddFOp::create(b, a, c));
  return merged;
}

void AttentionTiles::writeSplit(ValueRange running) {
  constexpr int64_t threads = AttentionTilePlan::threads;
  int64_t elements = 0, total = getScratchBytes();
  for (Value value : running)
    elements += getNumElements(value.getType());
  int64_t count = (total - MW_RT_COUNTER_BYTES) * 8 / plan.compute.getIntOrFloatBitWidth();
  Value written = memref::ViewOp::create(b, MemRefType::get({count}, plan.compute), scratch,
                                         getIndex(MW_RT_COUNTER_BYTES), ValueRange());
  // Threads without a row have nothing to tell.
  Value exists;
  for (const Row &row : rows) {
    if (!row.exists) {
      exists = Value();
      break;
    }
    exists = exists ? arith::OrIOp::create(b, exists, row.exists).getResult() : row.exists;
  }
  // Neighbouring threads access neighbouring elements.
  auto forEachValue = [&](Value number, function_ref<void(Value, Type)> body) {
    Value base = mul(add(mul(whole, plan.splits), number), threads * elements);
    int64_t at = 0;
    for (Value value : running) {
      int64_t width = getNumElements(value.getType());
      body(add(add(base, at * threads), mul(thread, width)), value.getType());
      at += width;
    }
  };
  auto write = [&] {
    size_t i = 0;
    forEachValue(split, [&](Value index, Type type) {
      Value value = running[i++];
      if (isa<VectorType>(type))
        vector::StoreOp::create(b, value, written, index);
      else
        memref::StoreOp::create(b, value, written, index);
    });
  };
  exists ? when(exists, write) : write();
  emitFence(b);
  emitBarrier(b);
  Type word = b.getI32Type();
  Value address = memref::ExtractAlignedPointerAsIndexOp::create(b, scratch);
  address = arith::IndexCastOp::create(b, b.getI64Type(), add(address, mul(whole, 4)));
  constexpr unsigned globalSpace = 1;
  Value counter =
      LLVM::IntToPtrOp::create(b, LLVM::LLVMPointerType::get(b.getContext(), globalSpace), address);
  Value isFirstThread = compare(arith::CmpIPredicate::eq, thread, getIndex(0));
  Value isLast = choose(
                     isFirstThread,
                     [&] {
                       Value before = LLVM::AtomicRMWOp::create(
                           b, LLVM::AtomicBinOp::add, counter, emitConstant(b, word, 1),
                           LLVM::AtomicOrdering::acq_rel, "device");
                       return SmallVector<Value>{compare(arith::CmpIPredicate::eq, before,
                                                         emitConstant(b, word, plan.splits - 1))};
                     },
                     [&] { return SmallVector<Value>{emitConstant(b, b.getI1Type(), 0)}; })
                     .front();
  when(emitAny(b, isLast), [&] {
    emitFence(b);
    when(isFirstThread, [&] { LLVM::StoreOp::create(b, emitConstant(b, word, 0), counter); });
    auto readAll = [&] {
      return loop(getIndex(0), getIndex(plan.splits), 1, getStart(),
                  [&](Value i, ValueRange known) {
                    SmallVector<Value> other;
                    forEachValue(i, [&](Value index, Type type) {
                      if (auto vector = dyn_cast<VectorType>(type))
                        other.push_back(vector::LoadOp::create(b, vector, written, index));
                      else
                        other.push_back(memref::LoadOp::create(b, written, index));
                    });
                    return merge(known, other);
                  });
    };
    emitEnd(exists ? choose(exists, readAll, [&] { return getStart(); }) : readAll());
  });
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

SmallVector<Value> AttentionTiles::emitTile(ValueRange running) {
  if (!mayHide())
    return emitUpdate(running);
  emitMask();
  Value any = seen.front();
  for (Value is : ArrayRef(seen).drop_front())
    any = arith::OrIOp::create(b, any, is);
  return choose(
      isAny(any), [&] { return emitUpdate(running); },
      [&] {
        emitHidden();
        return llvm::to_vector(running);
      });
}

Value AttentionTiles::emitScore(Value product, size_t i) {
  Value score = emitCapped(product);
  if (!biases.empty())
    score = arith::AddFOp::create(b, score, biases[i]);
  if (!seen[i])
    return score;
  return arith::SelectOp::create(b, seen[i], score,
                                 getScalar(-std::numeric_limits<double>::infinity()));
}

SmallVector<Value> AttentionTiles::emitUpdate(ValueRange running) {
  // Early, when there are no scores in registers yet.
  emitDropout();
  SmallVector<Value> scores = emitProducts();
  // Late, so that products do not have to leave registers for the mask.
  if (!mayHide())
    emitMask();
  for (auto [i, score] : llvm::enumerate(scores))
    score = emitScore(score, i);
  int64_t numRows = plan.rowsOfThread;
  Value zero = getScalar(0), none = getScalar(-std::numeric_limits<double>::infinity());
  auto larger = [&](Value x, Value y) -> Value { return arith::MaxNumFOp::create(b, x, y); };
  SmallVector<Value> maxima, sums, scales;
  for (int64_t row = 0; row < numRows; ++row) {
    MutableArrayRef<Value> own =
        MutableArrayRef<Value>(scores).slice(row * plan.keysOfThread, plan.keysOfThread);
    Value largest = own.front();
    for (Value score : own.drop_front())
      largest = larger(largest, score);
    largest = larger(emitLaneReduction(b, largest, 4, larger), running[row]);
    // Nothing is subtracted from rows without a score.
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, largest, none);
    Value shift = arith::SelectOp::create(b, isEmpty, zero, largest);
    Value sum;
    for (Value &score : own) {
      score = exponentiate(score, shift);
      sum = sum ? arith::AddFOp::create(b, sum, score).getResult() : score;
    }
    maxima.push_back(largest);
    scales.push_back(exponentiate(running[row], shift));
    // Each lane sums its own keys.
    sums.push_back(math::FmaOp::create(b, running[numRows + row], scales[row], sum));
  }
  // Sums have the weights that are dropped, too.
  for (auto [i, share] : llvm::enumerate(scores))
    share = drop(share, i);
  SmallVector<Value> next(maxima);
  llvm::append_range(next, sums);
  llvm::append_range(next, emitValues(scores, scales, running.drop_front(2 * numRows)));
  return next;
}

Value AttentionTiles::getWeightFactor(size_t, Value sum, Value) {
  return arith::DivFOp::create(b, getScalar(plan.rules.kept), sum);
}

void AttentionTiles::emitEnd(ValueRange running) {
  Value zero = getScalar(0);
  SmallVector<Value> factors;
  for (auto [i, row] : llvm::enumerate(rows)) {
    Value sum = emitLaneReduction(b, running[rows.size() + i], 4, [&](Value x, Value y) -> Value {
      return arith::AddFOp::create(b, x, y);
    });
    Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
    factors.push_back(arith::SelectOp::create(b, isEmpty, zero, getWeightFactor(i, sum, running[i])));
    if (!lse)
      continue;
    Value writes = both(row.exists, compare(arith::CmpIPredicate::eq, quad, getIndex(0)));
    if (plan.slices > 1)
      writes = both(writes, compare(arith::CmpIPredicate::eq, firstFeature, getIndex(0)));
    when(writes, [&, row = row, maximum = running[i]] {
      Value logarithm;
      if (op && hasWideLogSumExp(op)) {
        logarithm = emitWideLogSumExp(b, op, sum, maximum);
      } else {
        Value natural = arith::MulFOp::create(b, maximum, getScalar(1 / plan.rules.unit));
        logarithm = arith::AddFOp::create(b, math::LogOp::create(b, sum), natural);
      }
      memref::StoreOp::create(b, logarithm, lse, getResultRow(row.index));
    });
  }
  emitResult(factors, running.drop_front(2 * rows.size()));
}

} // namespace meshwright::lower

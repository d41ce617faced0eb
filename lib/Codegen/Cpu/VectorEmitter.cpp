//===- VectorEmitter.cpp - vectors and workspaces of kernels --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/VectorEmitter.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"

#include <array>
#include <limits>

using namespace mlir;

namespace meshwright::lower {

void VectorEmitter::reserve(Region &region, int64_t count, Type type) {
  constexpr int64_t alignment = 64;
  region.offset = workspaceBytes;
  region.count = std::max<int64_t>(count, 1);
  region.type = type;
  workspaceBytes += llvm::alignTo(region.count * (type.getIntOrFloatBitWidth() / 8), alignment);
  regions.push_back(&region);
}

void VectorEmitter::bindWorkspace(Value workspace) {
  for (Region *region : regions)
    region->buffer = memref::ViewOp::create(b, MemRefType::get({region->count}, region->type),
                                            workspace, getIndex(region->offset), ValueRange());
}

//===----------------------------------------------------------------------===//
// Vectors
//===----------------------------------------------------------------------===//

Value VectorEmitter::getScalar(double value) { return emitConstant(b, compute, value); }

Value VectorEmitter::getSplat(double value) {
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(getVector(), b.getFloatAttr(compute, value)));
}

Value VectorEmitter::splat(Value scalar) {
  return vector::BroadcastOp::create(b, getVector(lanes, scalar.getType()), scalar);
}

Value VectorEmitter::fma(Value a, Value c, Value d) {
  return LLVM::FMulAddOp::create(b, a, c, d);
}

Value VectorEmitter::dot(Value a, Value c, Value d) {
  return LLVM::CallIntrinsicOp::create(b, getVector(),
                                       b.getStringAttr("llvm.x86.avx512bf16.dpbf16ps.512"),
                                       ValueRange{d, a, c})
      .getResult(0);
}

Value VectorEmitter::load(Value buffer, Value index, int64_t size) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  return vector::LoadOp::create(b, getVector(size, type), buffer, index);
}

Value VectorEmitter::loadScalar(Value buffer, Value index) {
  return memref::LoadOp::create(b, buffer, index);
}

void VectorEmitter::store(Value value, Value buffer, Value index) {
  vector::StoreOp::create(b, value, buffer, index);
}

Value VectorEmitter::shuffle(Value a, Value c, ArrayRef<int64_t> lanes) {
  return vector::ShuffleOp::create(b, a, c, lanes);
}

Value VectorEmitter::resize(Value vector, int64_t size) {
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

Value VectorEmitter::larger(Value a, Value c) {
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

void VectorEmitter::transpose(SmallVector<Value> &vectors) {
  for (int64_t step = 1; step < lanes; step *= 2) {
    auto [lower, upper] = getExchange(lanes, step);
    for (int64_t i = 0; i < lanes; ++i)
      if ((i & step) == 0) {
        Value first = vectors[i], second = vectors[i + step];
        vectors[i] = shuffle(first, second, lower);
        vectors[i + step] = shuffle(first, second, upper);
      }
  }
}

Value VectorEmitter::sumEach(SmallVector<Value> vectors) {
  for (int64_t step = 1; step < lanes; step *= 2) {
    auto [lower, upper] = getExchange(lanes, step);
    SmallVector<Value> sums;
    for (size_t i = 0; i < vectors.size(); i += 2)
      sums.push_back(arith::AddFOp::create(b, shuffle(vectors[i], vectors[i + 1], lower),
                                           shuffle(vectors[i], vectors[i + 1], upper)));
    vectors = std::move(sums);
  }
  return vectors.front();
}

Value VectorEmitter::guard(Value maximum) {
  Value lowest = getSplat(-std::numeric_limits<double>::infinity());
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, maximum, lowest);
  return arith::SelectOp::create(b, isEmpty, getSplat(0), maximum);
}

Value VectorEmitter::invert(Value sum) {
  Value zero = getSplat(0);
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, sum, zero);
  return arith::SelectOp::create(b, isEmpty, zero, arith::DivFOp::create(b, getSplat(1), sum));
}

} // namespace meshwright::lower

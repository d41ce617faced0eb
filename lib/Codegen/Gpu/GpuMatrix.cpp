//===- GpuMatrix.cpp - products of fragments on GPUs ----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuMatrix.h"

#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace meshwright::lower {

SmallVector<Value> emitLoadFragments(Builder &b, Value buffer, Value index, bool transposed) {
  Value base = memref::ExtractAlignedPointerAsIndexOp::create(b, buffer);
  Value offset = arith::MulIOp::create(b, index, emitIndex(b, 2));
  Value address = arith::IndexCastOp::create(b, b.getI64Type(),
                                             arith::AddIOp::create(b, base, offset));
  auto type = LLVM::LLVMPointerType::get(b.getContext(), kSharedSpace);
  Value pointer = LLVM::IntToPtrOp::create(b, type, address);
  Type word = b.getI32Type();
  auto words = LLVM::LLVMStructType::getLiteral(b.getContext(), {word, word, word, word});
  StringRef name = transposed ? "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.trans.b16"
                              : "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16";
  Value all = LLVM::CallIntrinsicOp::create(b, words, b.getStringAttr(name), ValueRange(pointer))
                  .getResult(0);
  SmallVector<Value> fragments;
  for (int64_t i = 0; i < 4; ++i)
    fragments.push_back(LLVM::ExtractValueOp::create(b, all, i));
  return fragments;
}

void emitMma(Builder &b, Type element, ArrayRef<Value> left, ArrayRef<Value> right,
             MutableArrayRef<Value> sums) {
  bool isBf16 = element.isBF16();
  SmallVector<Value> operands;
  for (ArrayRef<Value> words : {left, right})
    for (Value word : words)
      operands.push_back(
          isBf16 ? word : LLVM::BitcastOp::create(b, VectorType::get(2, element), word));
  operands.append(sums.begin(), sums.end());
  Type f32 = b.getF32Type();
  auto type = LLVM::LLVMStructType::getLiteral(b.getContext(), {f32, f32, f32, f32});
  StringRef name = isBf16 ? "llvm.nvvm.mma.m16n8k16.row.col.bf16"
                          : "llvm.nvvm.mma.m16n8k16.row.col.f32.f32";
  Value all = LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr(name), operands).getResult(0);
  for (auto [i, sum] : llvm::enumerate(sums))
    sum = LLVM::ExtractValueOp::create(b, all, i);
}

Value emitPair(Builder &b, Type element, Value low, Value high) {
  Value both = vector::FromElementsOp::create(b, VectorType::get(2, b.getF32Type()),
                                              ValueRange{low, high});
  return LLVM::BitcastOp::create(b, b.getI32Type(), emitCast(b, both, element));
}

Value emitShared(Builder &b, Value shared, int64_t offset, int64_t count, Type type) {
  auto flat = MemRefType::get({count}, type, MemRefLayoutAttrInterface(),
                              b.getI64IntegerAttr(kSharedSpace));
  return memref::ViewOp::create(b, flat, shared, emitIndex(b, offset), ValueRange());
}

} // namespace meshwright::lower

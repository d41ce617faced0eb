//===- GpuThreads.cpp - threads of a block, and their exchange ------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/GpuThreads.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace meshwright::lower {

static Value call(Builder &b, StringRef name, Type type, ValueRange operands) {
  return LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr(name), operands).getResult(0);
}

static Value emitNumber(Builder &b, StringRef name, int64_t count) {
  if (count == 1)
    return emitIndex(b, 0);
  Value number = call(b, name, b.getI32Type(), {});
  return arith::IndexCastUIOp::create(b, b.getIndexType(), number);
}

Value emitThread(Builder &b, int64_t count) {
  return emitNumber(b, "llvm.nvvm.read.ptx.sreg.tid.x", count);
}

Value emitBlock(Builder &b, int64_t count) {
  return emitNumber(b, "llvm.nvvm.read.ptx.sreg.ctaid.x", count);
}

Value emitItem(Builder &b, int64_t blocks, int64_t threads) {
  Value first = arith::MulIOp::create(b, emitBlock(b, blocks), emitIndex(b, threads));
  return arith::AddIOp::create(b, first, emitThread(b, threads));
}

void emitForItem(Builder &b, int64_t items, int64_t blocks, int64_t threads,
                 llvm::function_ref<void(Value)> body, Value existing) {
  if (items <= 0)
    return;
  OpBuilder::InsertionGuard guard(b);
  Value item = emitItem(b, blocks, threads);
  if (existing || items < blocks * threads) {
    Value end = existing ? existing : emitIndex(b, items);
    Value exists = arith::CmpIOp::create(b, arith::CmpIPredicate::ult, item, end);
    b.setInsertionPointToStart(scf::IfOp::create(b, exists).thenBlock());
  }
  body(item);
}

Value emitSplit(Builder &b, Value &value, int64_t size) {
  Value by = emitIndex(b, size), rest = arith::RemUIOp::create(b, value, by);
  value = arith::DivUIOp::create(b, value, by);
  return rest;
}

static Value emitI32(Builder &b, int64_t value) { return emitConstant(b, b.getI32Type(), value); }

Value emitOpaque(Builder &b, Value value) {
  return LLVM::InlineAsmOp::create(b, b.getI64Type(), value, "mov.b64 $0, $1;", "=l,l",
                                   /*has_side_effects=*/true, /*is_align_stack=*/false,
                                   LLVM::TailCallKind::None, LLVM::AsmDialectAttr(), ArrayAttr())
      .getResult(0);
}

void emitBarrier(Builder &b) {
  LLVM::CallIntrinsicOp::create(b, b.getStringAttr("llvm.nvvm.barrier.cta.sync.aligned.all"),
                                ValueRange(emitI32(b, 0)));
}

Value emitAny(Builder &b, Value value) {
  return call(b, "llvm.nvvm.barrier.cta.red.or.aligned.all", b.getI1Type(), {emitI32(b, 0), value});
}

void emitBarrier(Builder &b, Value barrier, int64_t threads) {
  LLVM::CallIntrinsicOp::create(b, b.getStringAttr("llvm.nvvm.barrier.cta.sync.aligned.count"),
                                ValueRange{barrier, emitI32(b, threads)});
}

Value emitAny(Builder &b, Value value, Value barrier, int64_t threads) {
  return call(b, "llvm.nvvm.barrier.cta.red.or.aligned.count", b.getI1Type(),
              {barrier, emitI32(b, threads), value});
}

void emitWarpBarrier(Builder &b) {
  LLVM::CallIntrinsicOp::create(b, b.getStringAttr("llvm.nvvm.bar.warp.sync"),
                                ValueRange(emitI32(b, -1)));
}

static Value exchangeWord(Builder &b, Value word, int64_t mask) {
  return call(b, "llvm.nvvm.shfl.sync.bfly.i32", b.getI32Type(),
              {emitI32(b, -1), word, emitI32(b, mask), emitI32(b, 31)});
}

Value emitExchange(Builder &b, Value value, int64_t mask) {
  Type type = value.getType(), i32 = b.getI32Type();
  unsigned bits = type.getIntOrFloatBitWidth();
  if (bits < 32) {
    Type integer = b.getIntegerType(bits);
    Value word = arith::BitcastOp::create(b, integer, value);
    word = exchangeWord(b, arith::ExtUIOp::create(b, i32, word), mask);
    return arith::BitcastOp::create(b, type, arith::TruncIOp::create(b, integer, word));
  }
  if (bits == 32) {
    Value word = arith::BitcastOp::create(b, i32, value);
    return arith::BitcastOp::create(b, type, exchangeWord(b, word, mask));
  }
  auto words = VectorType::get(2, i32);
  Value single = vector::FromElementsOp::create(b, VectorType::get(1, type), value);
  Value both = vector::BitCastOp::create(b, words, single);
  SmallVector<Value> halves;
  for (int64_t i : {0, 1})
    halves.push_back(exchangeWord(b, vector::ExtractOp::create(b, both, i), mask));
  both = vector::FromElementsOp::create(b, words, halves);
  single = vector::BitCastOp::create(b, VectorType::get(1, type), both);
  return vector::ExtractOp::create(b, single, int64_t(0));
}

Value emitLaneReduction(Builder &b, Value value, int64_t lanes,
                        llvm::function_ref<Value(Value, Value)> combine) {
  for (int64_t mask = lanes / 2; mask > 0; mask /= 2)
    value = combine(value, emitExchange(b, value, mask));
  return value;
}

Value emitBallot(Builder &b, Value value) {
  return call(b, "llvm.nvvm.vote.ballot.sync", b.getI32Type(), {emitI32(b, -1), value});
}

Value emitBitCount(Builder &b, Value word) {
  return LLVM::CtPopOp::create(b, word.getType(), word);
}

Value emitBitCountBefore(Builder &b, Value word) {
  Value before = call(b, "llvm.nvvm.read.ptx.sreg.lanemask.lt", b.getI32Type(), {});
  return emitBitCount(b, arith::AndIOp::create(b, word, before));
}

void emitFault(Builder &b, Value isInside, Value fault, Value position) {
  OpBuilder::InsertionGuard guard(b);
  Value isFault = arith::XOrIOp::create(b, isInside, emitConstant(b, b.getI1Type(), 1));
  b.setInsertionPointToStart(scf::IfOp::create(b, isFault).thenBlock());
  Value word = arith::IndexCastOp::create(b, b.getI64Type(), position);
  memref::AtomicRMWOp::create(b, arith::AtomicRMWKind::minu, word, fault, emitIndex(b, 0));
}

} // namespace meshwright::lower

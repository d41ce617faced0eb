//===- LoopEmitter.cpp - indices, loops and branches of kernels -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/LoopEmitter.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;

namespace meshwright::lower {

Value LoopEmitter::getIndex(int64_t value) { return arith::ConstantIndexOp::create(b, value); }
Value LoopEmitter::add(Value a, Value c) { return b.createOrFold<arith::AddIOp>(a, c); }
Value LoopEmitter::sub(Value a, Value c) { return b.createOrFold<arith::SubIOp>(a, c); }
Value LoopEmitter::mul(Value a, int64_t c) {
  return b.createOrFold<arith::MulIOp>(a, getIndex(c));
}
Value LoopEmitter::div(Value a, int64_t c) {
  return b.createOrFold<arith::DivUIOp>(a, getIndex(c));
}
Value LoopEmitter::rem(Value a, int64_t c) {
  return b.createOrFold<arith::RemUIOp>(a, getIndex(c));
}
Value LoopEmitter::min(Value a, Value c) { return b.createOrFold<arith::MinSIOp>(a, c); }
Value LoopEmitter::max(Value a, Value c) { return b.createOrFold<arith::MaxSIOp>(a, c); }
Value LoopEmitter::isBelow(Value a, Value c) {
  return arith::CmpIOp::create(b, arith::CmpIPredicate::slt, a, c);
}
Value LoopEmitter::both(Value a, Value c) {
  return !a ? c : !c ? a : arith::AndIOp::create(b, a, c).getResult();
}

SmallVector<Value> LoopEmitter::loop(Value from, Value to, int64_t step, ValueRange inits,
                                          LoopBody body) {
  auto loop = scf::ForOp::create(b, from, to, getIndex(step), inits);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> results = body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!inits.empty())
    scf::YieldOp::create(b, results);
  return loop.getResults();
}

void LoopEmitter::loop(Value from, Value to, int64_t step, function_ref<void(Value)> body) {
  loop(from, to, step, {}, [&](Value i, ValueRange) {
    body(i);
    return SmallVector<Value>();
  });
}

void LoopEmitter::when(Value condition, function_ref<void()> body,
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

SmallVector<Value> LoopEmitter::choose(Value condition,
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

} // namespace meshwright::lower

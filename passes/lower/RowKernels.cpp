//===- RowKernels.cpp - norms, softmax, reductions, running sums ----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A kernel goes row by row, so that the passes over a row find it in cache.
//
//===----------------------------------------------------------------------===//

#include "KernelScope.h"

#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

#include <limits>

using namespace mlir;

namespace meshwright::lower {

//===----------------------------------------------------------------------===//
// Loops
//===----------------------------------------------------------------------===//

Value emitIndex(Builder &builder, int64_t value) {
  return arith::ConstantIndexOp::create(builder, value);
}

void emitLoop(Builder &builder, int64_t count, function_ref<void(Builder &, Value)> body) {
  emitLoop(builder, emitIndex(builder, count), body);
}

void emitLoop(Builder &builder, Value count, function_ref<void(Builder &, Value)> body) {
  scf::ForOp::create(builder, emitIndex(builder, 0), count, emitIndex(builder, 1), ValueRange(),
                     [&](OpBuilder &nested, Location loc, Value i, ValueRange) {
                       Builder inner(loc, nested);
                       body(inner, i);
                       scf::YieldOp::create(inner);
                     });
}

static void emitLoopsFrom(Builder &builder, ArrayRef<int64_t> shape,
                          SmallVectorImpl<Value> &indices,
                          function_ref<void(Builder &, ValueRange)> body) {
  if (indices.size() == shape.size())
    return body(builder, indices);
  emitLoop(builder, shape[indices.size()], [&](Builder &inner, Value i) {
    indices.push_back(i);
    emitLoopsFrom(inner, shape, indices, body);
    indices.pop_back();
  });
}

void emitLoops(Builder &builder, ArrayRef<int64_t> shape,
               function_ref<void(Builder &, ValueRange)> body) {
  SmallVector<Value> indices;
  emitLoopsFrom(builder, shape, indices, body);
}

Value emitFold(Builder &builder, int64_t count, Value init,
               function_ref<Value(Builder &, Value, Value)> body) {
  auto loop = scf::ForOp::create(builder, emitIndex(builder, 0), emitIndex(builder, count),
                                 emitIndex(builder, 1), ValueRange(init),
                                 [&](OpBuilder &nested, Location loc, Value i, ValueRange state) {
                                   Builder inner(loc, nested);
                                   Value next = body(inner, i, state[0]);
                                   scf::YieldOp::create(inner, next);
                                 });
  return loop.getResult(0);
}

Value emitSum(Builder &builder, int64_t count, Type type,
              function_ref<Value(Builder &, Value)> term) {
  return emitFold(builder, count, emitConstant(builder, type, 0),
                  [&](Builder &inner, Value i, Value sum) -> Value {
                    Value value = term(inner, i);
                    if (isa<IntegerType>(type))
                      return arith::AddIOp::create(inner, sum, value);
                    return arith::AddFOp::create(inner, sum, value,
                                                 arith::FastMathFlags::reassoc |
                                                     arith::FastMathFlags::contract);
                  });
}

Value emitMax(Builder &builder, int64_t count, Type type,
              function_ref<Value(Builder &, Value)> term) {
  Value init = emitConstant(builder, type, -std::numeric_limits<double>::infinity());
  return emitFold(builder, count, init, [&](Builder &inner, Value i, Value largest) -> Value {
    return arith::MaximumFOp::create(inner, largest, term(inner, i));
  });
}

Value emitLoad(Builder &builder, Value buffer, ValueRange indices) {
  Value value = memref::LoadOp::create(builder, buffer, indices);
  return emitCast(builder, value, getComputeType(value.getType()));
}

void emitStore(Builder &builder, Value value, Value buffer, ValueRange indices) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  memref::StoreOp::create(builder, emitCast(builder, value, type), buffer, indices);
}

//===----------------------------------------------------------------------===//
// Softmax
//===----------------------------------------------------------------------===//

/// Softmax of one row: `load` gives a score, `store` takes a probability and
/// `reload` gives back what was stored, if that loses nothing. A row of -inf
/// gives zeros.
static void emitSoftmaxRow(Builder &b, int64_t count, Type type,
                           function_ref<Value(Builder &, Value)> load,
                           function_ref<void(Builder &, Value, Value)> store,
                           function_ref<Value(Builder &, Value)> reload) {
  Value largest = emitMax(b, count, type, load);
  Value zero = emitConstant(b, type, 0);
  Value lowest = emitConstant(b, type, -std::numeric_limits<double>::infinity());
  Value isEmpty = arith::CmpFOp::create(b, arith::CmpFPredicate::OEQ, largest, lowest);
  Value shift = arith::SelectOp::create(b, isEmpty, zero, largest);
  auto power = [&](Builder &inner, Value i) -> Value {
    return math::ExpOp::create(inner, arith::SubFOp::create(inner, load(inner, i), shift));
  };
  if (reload)
    emitLoop(b, count, [&](Builder &inner, Value i) { store(inner, power(inner, i), i); });
  Value sum = emitSum(b, count, type, [&](Builder &inner, Value i) {
    return reload ? reload(inner, i) : power(inner, i);
  });
  Value divisor = arith::SelectOp::create(b, isEmpty, emitConstant(b, type, 1), sum);
  emitLoop(b, count, [&](Builder &inner, Value i) {
    Value value = reload ? reload(inner, i) : power(inner, i);
    store(inner, arith::DivFOp::create(inner, value, divisor), i);
  });
}

/// Whether query i sees key j, as far as structure says; null: it does.
static Value emitVisible(Builder &b, nn::AttentionOp op, Value i, Value j) {
  Value visible;
  auto require = [&](arith::CmpIPredicate predicate, Value lhs, Value rhs) {
    Value condition = arith::CmpIOp::create(b, predicate, lhs, rhs);
    visible = visible ? arith::AndIOp::create(b, visible, condition).getResult() : condition;
  };
  if (op.getCausal())
    require(arith::CmpIPredicate::sle, j, i);
  if (auto window = op.getWindowLeft())
    require(arith::CmpIPredicate::sle, i, arith::AddIOp::create(b, j, emitIndex(b, *window)));
  if (auto window = op.getWindowRight())
    require(arith::CmpIPredicate::sle, j, arith::AddIOp::create(b, i, emitIndex(b, *window)));
  if (auto length = op.getKvLength())
    require(arith::CmpIPredicate::slt, j, emitIndex(b, *length));
  return visible;
}

std::string KernelScope::buildAttention(nn::AttentionOp op) {
  auto queryType = cast<RankedTensorType>(op.getQuery().getType());
  auto keyType = cast<RankedTensorType>(op.getKey().getType());
  int64_t queries = queryType.getDimSize(2), keys = keyType.getDimSize(2);
  Type type = getComputeType(queryType.getElementType());
  OpBuilder types(op.getContext());
  // The bias's last two dimensions, of which either may be stretched.
  SmallVector<int64_t> biasShape{1, 1};
  if (op.getBias()) {
    auto shape = cast<RankedTensorType>(op.getBias().getType()).getShape();
    for (size_t i = 0; i < std::min<size_t>(2, shape.size()); ++i)
      biasShape[1 - i] = shape[shape.size() - 1 - i];
  }
  Type biasType = op.getBias() ? getStorageType(getElementTypeOrSelf(op.getBias().getType()))
                               : Type(types.getF32Type());
  // All pointers are always passed; the kernel reads those that are there.
  func::FuncOp kernel = kernels.beginFunction(
      {MemRefType::get({queries, keys}, type), MemRefType::get({keys}, types.getI8Type()),
       MemRefType::get(biasShape, biasType), types.getI64Type(), types.getI64Type(),
       MemRefType::get({queries, keys}, type)});
  Value products = kernel.getArgument(0), padding = kernel.getArgument(1);
  Value bias = kernel.getArgument(2), out = kernel.getArgument(5);
  Builder builder = getBuilder(kernel);
  auto toIndex = [&](unsigned argument) -> Value {
    return arith::IndexCastOp::create(builder, builder.getIndexType(),
                                      kernel.getArgument(argument));
  };
  Value first = toIndex(3), count = toIndex(4);
  emitLoop(builder, count, [&](Builder &row, Value i) {
    Value query = arith::AddIOp::create(row, first, i);
    emitLoop(row, keys, [&](Builder &b, Value j) {
      Value score = arith::MulFOp::create(b, emitLoad(b, products, {i, j}),
                                          emitConstant(b, type, op.getScale().convertToDouble()));
      if (auto cap = op.getSoftCap()) {
        Value limit = emitConstant(b, type, cap->convertToDouble());
        score = arith::MulFOp::create(
            b, limit, math::TanhOp::create(b, arith::DivFOp::create(b, score, limit)));
      }
      if (op.getBias()) {
        Value zero = emitIndex(b, 0);
        Value term =
            emitLoad(b, bias, {biasShape[0] == 1 ? zero : query, biasShape[1] == 1 ? zero : j});
        score = arith::AddFOp::create(b, score, emitCast(b, term, type));
      }
      Value visible = emitVisible(b, op, query, j);
      if (op.getKeyPadding()) {
        Value kept = fromStorage(b, memref::LoadOp::create(b, padding, j), b.getI1Type());
        visible = visible ? arith::AndIOp::create(b, visible, kept).getResult() : kept;
      }
      if (visible)
        score = arith::SelectOp::create(
            b, visible, score, emitConstant(b, type, -std::numeric_limits<double>::infinity()));
      emitStore(b, score, out, {i, j});
    });
    auto load = [&](Builder &b, Value j) { return emitLoad(b, out, {i, j}); };
    auto store = [&](Builder &b, Value value, Value j) { emitStore(b, value, out, {i, j}); };
    emitSoftmaxRow(row, keys, type, load, store, load);
  });
  return finish(kernel);
}

} // namespace meshwright::lower

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
// Norms
//===----------------------------------------------------------------------===//

/// The last dimension, and how many rows of it there are.
static std::pair<int64_t, int64_t> getRows(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  int64_t columns = type.getRank() ? type.getShape().back() : 1;
  int64_t rows = 1;
  for (int64_t size : type.getShape().drop_back(type.getRank() ? 1 : 0))
    rows *= size;
  return {rows, columns};
}

/// 1 / sqrt(sum / count + eps).
static Value emitInverseRoot(Builder &b, Value sum, int64_t count, double eps) {
  Type type = sum.getType();
  Value mean = arith::DivFOp::create(b, sum, emitConstant(b, type, count));
  Value shifted = arith::AddFOp::create(b, mean, emitConstant(b, type, eps));
  return arith::DivFOp::create(b, emitConstant(b, type, 1), math::SqrtOp::create(b, shifted));
}

KernelInfo KernelScope::buildRmsNorm(nn::RmsNormOp op) {
  auto [rows, columns] = getRows(op.getInput());
  Type type = getComputeType(getElementTypeOrSelf(op.getInput().getType()));
  SmallVector<Type> types{getBufferType(op.getInput(), {rows, columns})};
  if (op.getWeight())
    types.push_back(getBufferType(op.getWeight()));
  types.push_back(getBufferType(op.getResult(), {rows, columns}));
  func::FuncOp kernel = begin(op, types);
  Value x = kernel.getArgument(0), out = kernel.getArgument(types.size() - 1);
  Builder builder = getBuilder(kernel);
  int64_t count = columns;
  emitLoop(builder, rows, [&](Builder &b, Value row) {
    Value sum = emitSum(b, count, type, [&](Builder &inner, Value i) -> Value {
      Value value = emitLoad(inner, x, {row, i});
      return arith::MulFOp::create(inner, value, value);
    });
    Value scale = emitInverseRoot(b, sum, count, op.getEps().convertToDouble());
    emitLoop(b, count, [&](Builder &inner, Value i) {
      Value value = arith::MulFOp::create(inner, emitLoad(inner, x, {row, i}), scale);
      if (op.getWeight()) {
        Value weight = emitCast(inner, emitLoad(inner, kernel.getArgument(1), i), type);
        if (op.getUnitOffset())
          weight = arith::AddFOp::create(inner, emitConstant(inner, type, 1), weight);
        value = arith::MulFOp::create(inner, value, weight);
      }
      emitStore(inner, value, out, {row, i});
    });
  });
  KernelInfo call{finish(kernel), {op.getInput()}};
  if (op.getWeight())
    call.inputs.push_back(op.getWeight());
  return call;
}

KernelInfo KernelScope::buildLayerNorm(nn::LayerNormOp op) {
  auto [rows, columns] = getRows(op.getInput());
  Type type = getComputeType(getElementTypeOrSelf(op.getInput().getType()));
  SmallVector<Type> types{getBufferType(op.getInput(), {rows, columns})};
  if (op.getWeight())
    types.push_back(getBufferType(op.getWeight()));
  if (op.getBias())
    types.push_back(getBufferType(op.getBias()));
  types.push_back(getBufferType(op.getResult(), {rows, columns}));
  func::FuncOp kernel = begin(op, types);
  Value x = kernel.getArgument(0), out = kernel.getArgument(types.size() - 1);
  Value weight = op.getWeight() ? kernel.getArgument(1) : Value();
  Value bias = op.getBias() ? kernel.getArgument(types.size() - 2) : Value();
  Builder builder = getBuilder(kernel);
  int64_t count = columns;
  emitLoop(builder, rows, [&](Builder &b, Value row) {
    Value sum = emitSum(b, count, type,
                        [&](Builder &inner, Value i) { return emitLoad(inner, x, {row, i}); });
    Value mean = arith::DivFOp::create(b, sum, emitConstant(b, type, count));
    auto centred = [&](Builder &inner, Value i) -> Value {
      return arith::SubFOp::create(inner, emitLoad(inner, x, {row, i}), mean);
    };
    Value squares = emitSum(b, count, type, [&](Builder &inner, Value i) -> Value {
      Value value = centred(inner, i);
      return arith::MulFOp::create(inner, value, value);
    });
    Value scale = emitInverseRoot(b, squares, count, op.getEps().convertToDouble());
    emitLoop(b, count, [&](Builder &inner, Value i) {
      Value value = arith::MulFOp::create(inner, centred(inner, i), scale);
      if (weight)
        value =
            arith::MulFOp::create(inner, value, emitCast(inner, emitLoad(inner, weight, i), type));
      if (bias)
        value =
            arith::AddFOp::create(inner, value, emitCast(inner, emitLoad(inner, bias, i), type));
      emitStore(inner, value, out, {row, i});
    });
  });
  KernelInfo call{finish(kernel), {op.getInput()}};
  if (op.getWeight())
    call.inputs.push_back(op.getWeight());
  if (op.getBias())
    call.inputs.push_back(op.getBias());
  return call;
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

/// Sizes before, of and behind a dimension.
static SmallVector<int64_t> splitAround(RankedTensorType type, int64_t dim) {
  SmallVector<int64_t> sizes{1, type.getDimSize(dim), 1};
  for (int64_t i = 0; i < type.getRank(); ++i)
    if (i != dim)
      sizes[i < dim ? 0 : 2] *= type.getDimSize(i);
  return sizes;
}

KernelInfo KernelScope::buildSoftmax(nn::SoftmaxOp op) {
  auto inputType = cast<RankedTensorType>(op.getInput().getType());
  SmallVector<int64_t> sizes = splitAround(inputType, op.getDim());
  Type type = getComputeType(inputType.getElementType());
  func::FuncOp kernel =
      begin(op, {getBufferType(op.getInput(), sizes), getBufferType(op.getResult(), sizes)});
  Value x = kernel.getArgument(0), out = kernel.getArgument(1);
  Builder builder = getBuilder(kernel);
  emitLoops(builder, {sizes[0], sizes[2]}, [&](Builder &b, ValueRange at) {
    Value outer = at[0], inner = at[1];
    auto load = [&](Builder &row, Value i) { return emitLoad(row, x, {outer, i, inner}); };
    auto store = [&](Builder &row, Value value, Value i) {
      emitStore(row, value, out, {outer, i, inner});
    };
    auto reload = [&](Builder &row, Value i) { return emitLoad(row, out, {outer, i, inner}); };
    if (type == inputType.getElementType())
      emitSoftmaxRow(b, sizes[1], type, load, store, reload);
    else
      emitSoftmaxRow(b, sizes[1], type, load, store, nullptr);
  });
  return {finish(kernel), {op.getInput()}};
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

//===----------------------------------------------------------------------===//
// Reductions
//===----------------------------------------------------------------------===//

static Value emitCombine(Builder &b, nn::ReduceKind kind, Value a, Value c) {
  bool isFloat = isa<FloatType>(a.getType());
  switch (kind) {
  case nn::ReduceKind::Sum:
  case nn::ReduceKind::Mean:
    if (isFloat)
      return arith::AddFOp::create(b, a, c,
                                   arith::FastMathFlags::reassoc | arith::FastMathFlags::contract);
    return arith::AddIOp::create(b, a, c);
  case nn::ReduceKind::Max:
    return isFloat ? arith::MaximumFOp::create(b, a, c).getResult()
                   : arith::MaxSIOp::create(b, a, c).getResult();
  case nn::ReduceKind::Min:
    return isFloat ? arith::MinimumFOp::create(b, a, c).getResult()
                   : arith::MinSIOp::create(b, a, c).getResult();
  }
  return a;
}

/// The neutral element.
static Value emitNeutral(Builder &b, nn::ReduceKind kind, Type type) {
  if (kind == nn::ReduceKind::Sum || kind == nn::ReduceKind::Mean)
    return emitConstant(b, type, 0);
  bool isMax = kind == nn::ReduceKind::Max;
  if (isa<FloatType>(type)) {
    double infinity = std::numeric_limits<double>::infinity();
    return emitConstant(b, type, isMax ? -infinity : infinity);
  }
  unsigned width = type.getIntOrFloatBitWidth();
  APInt extreme = isMax ? APInt::getSignedMinValue(width) : APInt::getSignedMaxValue(width);
  return arith::ConstantOp::create(b, b.getIntegerAttr(type, extreme));
}

KernelInfo KernelScope::buildReduce(nn::ReduceOp op) {
  auto inputType = cast<RankedTensorType>(op.getInput().getType());
  Type type = getComputeType(inputType.getElementType());
  // Adjacent dimensions of one kind are one.
  SmallVector<int64_t> sizes;
  SmallVector<bool> reduced;
  int64_t count = 1;
  for (int64_t d = 0; d < inputType.getRank(); ++d) {
    int64_t size = inputType.getDimSize(d);
    bool isReduced = llvm::is_contained(op.getDims(), d);
    count *= isReduced ? size : 1;
    if (size == 1)
      continue;
    if (!sizes.empty() && reduced.back() == isReduced) {
      sizes.back() *= size;
    } else {
      sizes.push_back(size);
      reduced.push_back(isReduced);
    }
  }
  SmallVector<int64_t> keptSizes, reducedSizes;
  for (size_t d = 0; d < sizes.size(); ++d)
    (reduced[d] ? reducedSizes : keptSizes).push_back(sizes[d]);
  func::FuncOp kernel =
      begin(op, {getBufferType(op.getInput(), sizes), getBufferType(op.getResult(), keptSizes)});
  Value x = kernel.getArgument(0), out = kernel.getArgument(1);
  Builder builder = getBuilder(kernel);
  emitLoops(builder, keptSizes, [&](Builder &b, ValueRange kept) {
    SmallVector<Value> inner;
    std::function<Value(Builder &, Value)> fold = [&](Builder &at, Value state) -> Value {
      if (inner.size() == reducedSizes.size()) {
        SmallVector<Value> indices;
        size_t nextKept = 0, nextReduced = 0;
        for (bool isReduced : reduced)
          indices.push_back(isReduced ? inner[nextReduced++] : kept[nextKept++]);
        return emitCombine(at, op.getKind(), state, emitLoad(at, x, indices));
      }
      return emitFold(at, reducedSizes[inner.size()], state,
                      [&](Builder &nested, Value i, Value carried) {
                        inner.push_back(i);
                        Value next = fold(nested, carried);
                        inner.pop_back();
                        return next;
                      });
    };
    Value value = fold(b, emitNeutral(b, op.getKind(), type));
    if (op.getKind() == nn::ReduceKind::Mean) {
      Value divisor = emitConstant(b, type, count);
      value = isa<FloatType>(type) ? arith::DivFOp::create(b, value, divisor).getResult()
                                   : arith::FloorDivSIOp::create(b, value, divisor).getResult();
    }
    emitStore(b, value, out, kept);
  });
  return {finish(kernel), {op.getInput()}};
}

KernelInfo KernelScope::buildCumsum(nn::CumsumOp op) {
  auto inputType = cast<RankedTensorType>(op.getInput().getType());
  SmallVector<int64_t> sizes = splitAround(inputType, op.getDim());
  Type type = getComputeType(inputType.getElementType());
  func::FuncOp kernel =
      begin(op, {getBufferType(op.getInput(), sizes), getBufferType(op.getResult(), sizes)});
  Value x = kernel.getArgument(0), out = kernel.getArgument(1);
  Builder builder = getBuilder(kernel);
  emitLoops(builder, {sizes[0], sizes[2]}, [&](Builder &b, ValueRange at) {
    Value outer = at[0], inner = at[1];
    emitFold(b, sizes[1], emitConstant(b, type, 0), [&](Builder &row, Value i, Value sum) -> Value {
      Value value = emitLoad(row, x, {outer, i, inner});
      Value next = isa<FloatType>(type) ? arith::AddFOp::create(row, sum, value).getResult()
                                        : arith::AddIOp::create(row, sum, value).getResult();
      emitStore(row, next, out, {outer, i, inner});
      return next;
    });
  });
  return {finish(kernel), {op.getInput()}};
}

} // namespace meshwright::lower

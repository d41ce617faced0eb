//===- KeySlopes.cpp - biases that grow with the key's position -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/serve/KeySlopes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace meshwright;
using nn::Writer;

namespace {

/// Derives by the position of the key, which is the last dimension of each value that it reads. The
/// query's position is the one before.
class KeyDerivative {
public:
  KeyDerivative(Writer &w, int64_t length) : w(w), length(length) {}

  /// The derivative: null for zero. Its last two dimensions have size 1. Fails if the value does
  /// not grow evenly with the position.
  FailureOr<Value> of(Value value);

private:
  FailureOr<Value> ofOp(Operation *op);
  FailureOr<Value> ofCast(nn::CastOp op);
  FailureOr<Value> ofReshape(Value input, Value result);
  FailureOr<Value> ofProduct(nn::MulOp op);

  /// Returns true if a value has no dimension of positions.
  static bool isPlain(Value value) {
    return llvm::all_of(shapeOf(value).take_back(2), [](int64_t size) { return size == 1; });
  }
  FailureOr<Value> negate(FailureOr<Value> value) {
    return succeeded(value) && *value ? w.neg(*value) : value;
  }

  Writer &w;
  int64_t length;
};

} // namespace

FailureOr<Value> KeyDerivative::of(Value value) {
  RankedTensorType type = typeOf(value);
  if (!type.getRank() || type.getShape().back() == 1)
    return Value();
  Operation *op = value.getDefiningOp();
  return op ? ofOp(op) : FailureOr<Value>(failure());
}

FailureOr<Value> KeyDerivative::ofOp(Operation *op) {
  if (auto iota = dyn_cast<nn::IotaOp>(op)) {
    RankedTensorType type = iota.getResult().getType();
    if (int64_t(iota.getDim()) != type.getRank() - 1)
      return Value();
    return w.fill(
        1, RankedTensorType::get(SmallVector<int64_t>(type.getRank(), 1), type.getElementType()));
  }
  if (auto constant = dyn_cast<nn::ConstantOp>(op)) {
    auto elements = dyn_cast<DenseElementsAttr>(constant.getValue());
    if (!elements || !elements.isSplat())
      return failure();
    return Value();
  }
  if (auto cast = dyn_cast<nn::CastOp>(op))
    return ofCast(cast);
  if (auto neg = dyn_cast<nn::NegOp>(op))
    return negate(of(neg.getInput()));
  if (isa<nn::BroadcastOp, nn::ReshapeOp>(op))
    return ofReshape(op->getOperand(0), op->getResult(0));
  if (auto mul = dyn_cast<nn::MulOp>(op))
    return ofProduct(mul);
  if (auto div = dyn_cast<nn::DivOp>(op)) {
    FailureOr<Value> top = of(div.getLhs());
    bool isFloat = isa<FloatType>(elementOf(div.getResult()));
    if (failed(top) || !isFloat || !isPlain(div.getRhs()))
      return failure();
    return *top ? w.div(*top, div.getRhs()) : *top;
  }
  if (!isa<nn::AddOp, nn::SubOp>(op))
    return failure();
  FailureOr<Value> lhs = of(op->getOperand(0)), rhs = of(op->getOperand(1));
  if (isa<nn::SubOp>(op))
    rhs = negate(rhs);
  if (failed(lhs) || failed(rhs) || !*lhs || !*rhs)
    return failed(lhs) || failed(rhs) ? FailureOr<Value>(failure()) : *lhs ? lhs : rhs;
  return w.add(*lhs, *rhs);
}

/// A cast must hold the positions as they are.
FailureOr<Value> KeyDerivative::ofCast(nn::CastOp op) {
  Type from = elementOf(op.getInput()), to = elementOf(op.getResult());
  auto digits = [](Type type) -> int64_t {
    if (auto floats = dyn_cast<FloatType>(type))
      return floats.getFPMantissaWidth();
    return type.getIntOrFloatBitWidth() - 1;
  };
  bool isExact =
      digits(to) >= digits(from) ||
      (isa<IntegerType>(from) && length <= int64_t(1) << std::min<int64_t>(digits(to), 62));
  if (!isExact || (isa<FloatType>(from) && !isa<FloatType>(to)))
    return failure();
  FailureOr<Value> inner = of(op.getInput());
  return succeeded(inner) && *inner ? w.cast(*inner, to) : inner;
}

/// Dimensions of size 1 come or go in front, or a dimension stretches.
FailureOr<Value> KeyDerivative::ofReshape(Value input, Value result) {
  ArrayRef<int64_t> from = shapeOf(input), to = shapeOf(result);
  if (from.empty() || from.back() == 1)
    return Value();
  if (from.back() != to.back())
    return failure();
  auto withoutOnes = [](ArrayRef<int64_t> shape) {
    return shape.drop_while([](int64_t size) { return size == 1; });
  };
  bool stretches = result.getDefiningOp<nn::BroadcastOp>() != nullptr;
  if (!stretches && withoutOnes(from) != withoutOnes(to))
    return failure();
  FailureOr<Value> inner = of(input);
  if (failed(inner) || !*inner)
    return inner;
  ArrayRef<int64_t> own = withoutOnes(shapeOf(*inner));
  SmallVector<int64_t> shape(to.size(), 1);
  llvm::copy(own, shape.end() - own.size());
  return w.reshape(*inner, shape);
}

/// One factor has no positions.
FailureOr<Value> KeyDerivative::ofProduct(nn::MulOp op) {
  Value plain = op.getRhs(), other = op.getLhs();
  if (!isPlain(plain))
    std::swap(plain, other);
  FailureOr<Value> inner = of(other);
  if (failed(inner) || !isPlain(plain))
    return failure();
  return *inner ? w.mul(*inner, plain) : *inner;
}

Value meshwright::writeKeySlopes(Writer &w, nn::AttentionOp op) {
  Value bias = op.getBias();
  FailureOr<Value> slopes = KeyDerivative(w, shapeOf(bias).back()).of(bias);
  if (failed(slopes))
    return {};
  int64_t heads = shapeOf(op.getQuery())[0] * shapeOf(op.getQuery())[1];
  Type type = elementOf(op.getQuery());
  if (!*slopes)
    return w.fill(0, RankedTensorType::get({heads}, type));
  SmallVector<int64_t> full = {shapeOf(op.getQuery())[0], shapeOf(op.getQuery())[1], 1, 1};
  Value each = w.broadcast(*slopes, full);
  return w.reshape(w.cast(each, type), {heads});
}

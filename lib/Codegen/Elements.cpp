//===- Elements.cpp - arithmetic of elementwise ops -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Elements.h"

#include "meshwright/dialects/Nn/NnDerivatives.h"
#include "meshwright/dialects/Nn/NnRandom.h"
#include "meshwright/dialects/Rt/Rt.h"
#include "meshwright/lib/Codegen/RandomNumbers.h"
#include "meshwright/lib/Support/ElementTypes.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

using namespace mlir;

namespace meshwright::lower {

Type getStorageType(Type type) {
  return type.isInteger(1) || isCode(type) ? IntegerType::get(type.getContext(), 8) : type;
}

/// A type with this element, of the shape of `like`: a scalar or a vector.
static Type withShapeOf(Type like, Type element) {
  if (auto vector = dyn_cast<VectorType>(like))
    return vector.clone(element);
  return element;
}

Value emitConstant(ImplicitLocOpBuilder &builder, Type type, double value) {
  Type element = getElementTypeOrSelf(type);
  TypedAttr attr;
  if (auto integer = dyn_cast<IntegerType>(element))
    attr = builder.getIntegerAttr(integer, APInt(integer.getWidth(), int64_t(value),
                                                 /*isSigned=*/true,
                                                 /*implicitTrunc=*/true));
  else
    attr = builder.getFloatAttr(element, value);
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, ArrayRef<Attribute>(attr));
  return arith::ConstantOp::create(builder, attr);
}

Value emitConstant(ImplicitLocOpBuilder &builder, TypedAttr element) {
  auto number = dyn_cast<FloatAttr>(element);
  if (number && isCode(number.getType()))
    element = builder.getIntegerAttr(getStorageType(number.getType()),
                                     number.getValue().bitcastToAPInt());
  return arith::ConstantOp::create(builder, element);
}

Value fromStorage(ImplicitLocOpBuilder &builder, Value value, Type type) {
  if (!getElementTypeOrSelf(type).isInteger(1))
    return value;
  return arith::CmpIOp::create(builder, arith::CmpIPredicate::ne, value,
                               emitConstant(builder, value.getType(), 0));
}

Value toStorage(ImplicitLocOpBuilder &builder, Value value) {
  if (!getElementTypeOrSelf(value.getType()).isInteger(1))
    return value;
  return arith::ExtUIOp::create(builder, withShapeOf(value.getType(), builder.getI8Type()), value);
}

/// Arithmetic on vectors of bf16 uses their bits as integers: LLVM cannot compile some of its
/// own operations on vectors with an odd number of bf16.
static Value asBits(ImplicitLocOpBuilder &b, Value value) {
  return arith::BitcastOp::create(b, withShapeOf(value.getType(), b.getI16Type()), value);
}

static Value widenBf16(ImplicitLocOpBuilder &b, Value value) {
  Type i32 = withShapeOf(value.getType(), b.getI32Type());
  Value bits = arith::ExtUIOp::create(b, i32, asBits(b, value));
  bits = arith::ShLIOp::create(b, bits, emitConstant(b, i32, 16));
  return arith::BitcastOp::create(b, withShapeOf(value.getType(), b.getF32Type()), bits);
}

Value emitInterleaved(ImplicitLocOpBuilder &b, Value vector) {
  int64_t count = cast<VectorType>(vector.getType()).getNumElements();
  SmallVector<int64_t> order;
  for (int64_t i = 0; i < count; ++i)
    order.push_back(i / 2 + (i % 2 ? count / 2 : 0));
  return vector::ShuffleOp::create(b, vector, vector, order);
}

/// Reads two bf16 as one i32, whose low half is the even element.
static Value widenEvenFirst(ImplicitLocOpBuilder &b, Value value) {
  int64_t count = cast<VectorType>(value.getType()).getNumElements();
  auto pairs = VectorType::get(count / 2, b.getI32Type());
  Value bits = vector::BitCastOp::create(b, pairs, asBits(b, value));
  Value even = arith::ShLIOp::create(b, bits, emitConstant(b, pairs, 16));
  Value odd = arith::AndIOp::create(b, bits, emitConstant(b, pairs, 0xffff0000));
  SmallVector<int64_t> all = llvm::to_vector(llvm::seq(count));
  Value words = vector::ShuffleOp::create(b, even, odd, all);
  return arith::BitcastOp::create(b, withShapeOf(value.getType(), b.getF32Type()), words);
}

static Value narrowEvenFirst(ImplicitLocOpBuilder &b, Value value) {
  Type type = withShapeOf(value.getType(), b.getBF16Type());
  Value narrow = arith::TruncFOp::create(b, type, value);
  return arith::BitcastOp::create(b, type, emitInterleaved(b, asBits(b, narrow)));
}

/// Rounds to nearest even, in integer arithmetic.
static Value roundToBf16(ImplicitLocOpBuilder &b, Value value) {
  Type i32 = withShapeOf(value.getType(), b.getI32Type());
  auto constant = [&](int64_t bits) { return emitConstant(b, i32, bits); };
  Value bits = arith::BitcastOp::create(b, i32, value);
  Value odd = arith::ShRUIOp::create(b, bits, constant(16));
  odd = arith::AndIOp::create(b, odd, constant(1));
  Value rounded = arith::AddIOp::create(b, bits, constant(0x7fff));
  rounded = arith::AddIOp::create(b, rounded, odd);
  // A NaN stays a NaN, even if only its low bits are set.
  Value quiet = arith::OrIOp::create(b, bits, constant(0x400000));
  Value isNan = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, value, value);
  rounded = arith::SelectOp::create(b, isNan, quiet, rounded);
  rounded = arith::ShRUIOp::create(b, rounded, constant(16));
  rounded = arith::TruncIOp::create(b, withShapeOf(value.getType(), b.getI16Type()), rounded);
  return arith::BitcastOp::create(b, withShapeOf(value.getType(), b.getBF16Type()), rounded);
}

Value emitCast(ImplicitLocOpBuilder &builder, Value value, Type type, LaneOrder order) {
  type = getElementTypeOrSelf(type);
  Type from = getElementTypeOrSelf(value.getType());
  if (from == type)
    return value;
  auto shaped = [&](Type element) { return withShapeOf(value.getType(), element); };
  bool fromFloat = isa<FloatType>(from), toFloat = isa<FloatType>(type);
  unsigned fromWidth = from.getIntOrFloatBitWidth(), toWidth = type.getIntOrFloatBitWidth();
  if (type.isInteger(1)) {
    if (!fromFloat)
      return arith::CmpIOp::create(builder, arith::CmpIPredicate::ne, value,
                                   emitConstant(builder, value.getType(), 0));
    value = emitCast(builder, value, getComputeType(from));
    return arith::CmpFOp::create(builder, arith::CmpFPredicate::UNE, value,
                                 emitConstant(builder, value.getType(), 0));
  }
  if (fromFloat && toFloat) {
    // Conversions between bf16, f16 and f64 go through f32.
    if (fromWidth == toWidth || (fromWidth == 64 && toWidth == 16))
      return emitCast(builder, emitCast(builder, value, builder.getF32Type()), type);
    auto vector = dyn_cast<VectorType>(value.getType());
    if (vector && order == LaneOrder::EvenFirst)
      return from.isBF16() ? widenEvenFirst(builder, value) : narrowEvenFirst(builder, value);
    if (vector && from.isBF16() && type.isF32())
      return widenBf16(builder, value);
    if (vector && from.isF32() && type.isBF16() && !llvm::isPowerOf2_64(vector.getNumElements()))
      return roundToBf16(builder, value);
    if (vector && (from.isBF16() || type.isBF16()) && !from.isF32() && !type.isF32())
      return emitCast(builder, emitCast(builder, value, builder.getF32Type()), type);
    if (fromWidth > toWidth)
      return arith::TruncFOp::create(builder, shaped(type), value);
    return arith::ExtFOp::create(builder, shaped(type), value);
  }
  if (fromFloat) {
    value = emitCast(builder, value, getComputeType(from));
    return arith::FPToSIOp::create(builder, shaped(type), value);
  }
  if (toFloat) {
    Type wide = shaped(getComputeType(type));
    value = from.isInteger(1) ? arith::UIToFPOp::create(builder, wide, value).getResult()
                              : arith::SIToFPOp::create(builder, wide, value).getResult();
    return emitCast(builder, value, type);
  }
  if (fromWidth > toWidth)
    return arith::TruncIOp::create(builder, shaped(type), value);
  if (from.isInteger(1))
    return arith::ExtUIOp::create(builder, shaped(type), value);
  return arith::ExtSIOp::create(builder, shaped(type), value);
}

arith::FastMathFlags getAccuracy(Type type) {
  return getElementTypeOrSelf(type).isBF16() ? arith::FastMathFlags::afn
                                             : arith::FastMathFlags::none;
}

/// 1 / (1 + e^-x).
static Value emitSigmoid(ImplicitLocOpBuilder &b, Value x, arith::FastMathFlags accuracy) {
  Value one = emitConstant(b, x.getType(), 1);
  Value power = arith::NegFOp::create(b, x);
  Value e = math::ExpOp::create(b, power, accuracy);
  return arith::DivFOp::create(b, one, arith::AddFOp::create(b, one, e), accuracy);
}

static Value emitRsqrt(ImplicitLocOpBuilder &b, Value x) {
  return arith::DivFOp::create(b, emitConstant(b, x.getType(), 1), math::SqrtOp::create(b, x));
}

/// The polynomial for f32 takes a subnormal number for the smallest normal one.
static Value emitLog(ImplicitLocOpBuilder &b, Value x) {
  Type type = x.getType();
  if (!getElementTypeOrSelf(type).isF32())
    return math::LogOp::create(b, x);
  auto choose = [&](Value isSmall, Value small, Value other) {
    return arith::SelectOp::create(b, isSmall, small, other);
  };
  Value isSmall = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, x,
                                        emitConstant(b, type, std::ldexp(1.0, -126)));
  Value large = arith::MulFOp::create(b, x, emitConstant(b, type, std::ldexp(1.0, 23)));
  Value logarithm = math::LogOp::create(b, choose(isSmall, large, x));
  return arith::SubFOp::create(
      b, logarithm,
      choose(isSmall, emitConstant(b, type, 23 * M_LN2), emitConstant(b, type, 0)));
}

static Value emitGelu(ImplicitLocOpBuilder &b, Value x, bool byTanh) {
  Type type = x.getType();
  auto constant = [&](double value) { return emitConstant(b, type, value); };
  Value inner;
  if (byTanh) {
    Value cube = arith::MulFOp::create(b, arith::MulFOp::create(b, x, x), x);
    Value sum = arith::AddFOp::create(b, x, arith::MulFOp::create(b, constant(0.044715), cube));
    inner = math::TanhOp::create(b, arith::MulFOp::create(b, constant(std::sqrt(2.0 / M_PI)), sum));
  } else {
    inner = math::ErfOp::create(b, arith::MulFOp::create(b, x, constant(std::sqrt(0.5))));
  }
  Value half = arith::MulFOp::create(b, constant(0.5), x);
  return arith::MulFOp::create(b, half, arith::AddFOp::create(b, constant(1), inner));
}

/// Quotient or remainder of integers, rounded toward minus infinity. A divisor of zero gives
/// zero, as in NumPy. A division by -1 becomes a negation, so that the smallest integer does
/// not trap.
static Value emitIntegerDivision(ImplicitLocOpBuilder &b, Value x, Value y, bool remainder) {
  Type type = x.getType();
  auto compare = [&](arith::CmpIPredicate predicate, Value lhs, Value rhs) -> Value {
    return arith::CmpIOp::create(b, predicate, lhs, rhs);
  };
  Value zero = emitConstant(b, type, 0), one = emitConstant(b, type, 1);
  Value isZero = compare(arith::CmpIPredicate::eq, y, zero);
  Value isMinusOne = compare(arith::CmpIPredicate::eq, y, emitConstant(b, type, -1));
  Value special = arith::OrIOp::create(b, isZero, isMinusOne);
  Value divisor = arith::SelectOp::create(b, special, one, y);
  Value quotient = arith::DivSIOp::create(b, x, divisor);
  Value rest = arith::SubIOp::create(b, x, arith::MulIOp::create(b, quotient, divisor));
  Value inexact = compare(arith::CmpIPredicate::ne, rest, zero);
  Value signs = compare(arith::CmpIPredicate::slt, arith::XOrIOp::create(b, rest, divisor), zero);
  Value adjust = arith::AndIOp::create(b, inexact, signs);
  if (remainder) {
    Value shifted = arith::AddIOp::create(b, rest, divisor);
    return arith::SelectOp::create(b, adjust, shifted, rest);
  }
  Value lower = arith::SubIOp::create(b, quotient, one);
  Value result = arith::SelectOp::create(b, adjust, lower, quotient);
  result = arith::SelectOp::create(b, isMinusOne, arith::SubIOp::create(b, zero, x), result);
  return arith::SelectOp::create(b, isZero, zero, result);
}

/// x - y * floor(x / y), exactly.
static Value emitFloatRemainder(ImplicitLocOpBuilder &b, Value x, Value y) {
  Value rest = arith::RemFOp::create(b, x, y);
  Value zero = emitConstant(b, x.getType(), 0);
  auto below = [&](Value value) -> Value {
    return arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, value, zero);
  };
  Value signs = arith::XOrIOp::create(b, below(rest), below(y));
  Value inexact = arith::CmpFOp::create(b, arith::CmpFPredicate::ONE, rest, zero);
  return arith::SelectOp::create(b, arith::AndIOp::create(b, signs, inexact),
                                 arith::AddFOp::create(b, rest, y), rest);
}

/// Powers whose exponent is a splat and has a shorter form.
static Value emitPower(ImplicitLocOpBuilder &b, nn::PowOp op, Value x, Value y) {
  DenseElementsAttr exponent;
  if (matchPattern(op.getRhs(), m_Constant(&exponent)) && exponent.isSplat()) {
    double power = exponent.getSplatValue<APFloat>().convertToDouble();
    auto square = [&]() -> Value { return arith::MulFOp::create(b, x, x); };
    if (power == 1)
      return x;
    if (power == 2)
      return square();
    if (power == 3)
      return arith::MulFOp::create(b, square(), x);
    if (power == -1)
      return arith::DivFOp::create(b, emitConstant(b, x.getType(), 1), x);
    if (power == 0.5)
      return math::SqrtOp::create(b, x);
    if (power == -0.5)
      return emitRsqrt(b, x);
  }
  return math::PowFOp::create(b, x, y);
}

static Value emitCompare(ImplicitLocOpBuilder &b, nn::CompareKind kind, Value x, Value y) {
  using nn::CompareKind;
  Type type = getElementTypeOrSelf(x.getType());
  if (isa<FloatType>(type)) {
    arith::CmpFPredicate predicate = arith::CmpFPredicate::OEQ;
    switch (kind) {
    case CompareKind::Eq:
      break;
    case CompareKind::Ne:
      predicate = arith::CmpFPredicate::UNE;
      break;
    case CompareKind::Lt:
      predicate = arith::CmpFPredicate::OLT;
      break;
    case CompareKind::Le:
      predicate = arith::CmpFPredicate::OLE;
      break;
    case CompareKind::Gt:
      predicate = arith::CmpFPredicate::OGT;
      break;
    case CompareKind::Ge:
      predicate = arith::CmpFPredicate::OGE;
      break;
    }
    return arith::CmpFOp::create(b, predicate, x, y);
  }
  // Truth values compare as 0 and 1.
  bool isUnsigned = type.isInteger(1);
  arith::CmpIPredicate predicate = arith::CmpIPredicate::eq;
  switch (kind) {
  case CompareKind::Eq:
    break;
  case CompareKind::Ne:
    predicate = arith::CmpIPredicate::ne;
    break;
  case CompareKind::Lt:
    predicate = isUnsigned ? arith::CmpIPredicate::ult : arith::CmpIPredicate::slt;
    break;
  case CompareKind::Le:
    predicate = isUnsigned ? arith::CmpIPredicate::ule : arith::CmpIPredicate::sle;
    break;
  case CompareKind::Gt:
    predicate = isUnsigned ? arith::CmpIPredicate::ugt : arith::CmpIPredicate::sgt;
    break;
  case CompareKind::Ge:
    predicate = isUnsigned ? arith::CmpIPredicate::uge : arith::CmpIPredicate::sge;
    break;
  }
  return arith::CmpIOp::create(b, predicate, x, y);
}

/// Emits arithmetic on floats of compute types.
static Value emitFloat(ImplicitLocOpBuilder &b, Operation *op, ArrayRef<Value> x) {
  arith::FastMathFlags accuracy = getAccuracy(op->getResult(0).getType());
  auto constant = [&](double value) { return emitConstant(b, x[0].getType(), value); };
  return TypeSwitch<Operation *, Value>(op)
      .Case<nn::NegOp>([&](auto) { return arith::NegFOp::create(b, x[0]); })
      .Case<nn::StopGradientOp, nn::WithDerivativeOp>([&](auto) { return x[0]; })
      .Case<nn::AbsOp>([&](auto) { return math::AbsFOp::create(b, x[0]); })
      .Case<nn::ExpOp>([&](auto) { return math::ExpOp::create(b, x[0], accuracy); })
      .Case<nn::LogOp>([&](auto) { return emitLog(b, x[0]); })
      .Case<nn::SqrtOp>([&](auto) { return math::SqrtOp::create(b, x[0]); })
      .Case<nn::RsqrtOp>([&](auto) { return emitRsqrt(b, x[0]); })
      .Case<nn::ReciprocalOp>([&](auto) { return arith::DivFOp::create(b, constant(1), x[0]); })
      .Case<nn::SinOp>([&](auto) { return math::SinOp::create(b, x[0]); })
      .Case<nn::CosOp>([&](auto) { return math::CosOp::create(b, x[0]); })
      .Case<nn::ErfOp>([&](auto) { return math::ErfOp::create(b, x[0]); })
      .Case<nn::FloorOp>([&](auto) { return math::FloorOp::create(b, x[0]); })
      .Case<nn::ReluOp>([&](auto) { return arith::MaximumFOp::create(b, x[0], constant(0)); })
      .Case<nn::SiluOp>(
          [&](auto) { return arith::MulFOp::create(b, x[0], emitSigmoid(b, x[0], accuracy)); })
      .Case<nn::TanhOp>([&](auto) { return math::TanhOp::create(b, x[0]); })
      .Case<nn::SigmoidOp>([&](auto) { return emitSigmoid(b, x[0], accuracy); })
      .Case<nn::GeluOp>(
          [&](nn::GeluOp gelu) { return emitGelu(b, x[0], gelu.getApproximateTanh()); })
      .Case<nn::AddOp>([&](auto) { return arith::AddFOp::create(b, x[0], x[1]); })
      .Case<nn::SubOp>([&](auto) { return arith::SubFOp::create(b, x[0], x[1]); })
      .Case<nn::MulOp>([&](auto) { return arith::MulFOp::create(b, x[0], x[1]); })
      .Case<nn::DivOp>([&](auto) { return arith::DivFOp::create(b, x[0], x[1]); })
      .Case<nn::RemOp>([&](auto) { return emitFloatRemainder(b, x[0], x[1]); })
      .Case<nn::PowOp>([&](nn::PowOp pow) { return emitPower(b, pow, x[0], x[1]); })
      .Case<nn::MaximumOp>([&](auto) { return arith::MaximumFOp::create(b, x[0], x[1]); })
      .Case<nn::MinimumOp>([&](auto) { return arith::MinimumFOp::create(b, x[0], x[1]); })
      .Default([](Operation *) { return Value(); });
}

static Value emitInteger(ImplicitLocOpBuilder &b, Operation *op, ArrayRef<Value> x) {
  auto constant = [&](double value) { return emitConstant(b, x[0].getType(), value); };
  return TypeSwitch<Operation *, Value>(op)
      .Case<nn::NegOp>([&](auto) { return arith::SubIOp::create(b, constant(0), x[0]); })
      .Case<nn::AbsOp>([&](auto) { return math::AbsIOp::create(b, x[0]); })
      .Case<nn::NotOp>([&](auto) { return arith::XOrIOp::create(b, x[0], constant(1)); })
      .Case<nn::AddOp>([&](auto) { return arith::AddIOp::create(b, x[0], x[1]); })
      .Case<nn::SubOp>([&](auto) { return arith::SubIOp::create(b, x[0], x[1]); })
      .Case<nn::MulOp>([&](auto) { return arith::MulIOp::create(b, x[0], x[1]); })
      .Case<nn::DivOp>([&](auto) { return emitIntegerDivision(b, x[0], x[1], false); })
      .Case<nn::RemOp>([&](auto) { return emitIntegerDivision(b, x[0], x[1], true); })
      .Case<nn::MaximumOp>([&](auto) { return arith::MaxSIOp::create(b, x[0], x[1]); })
      .Case<nn::MinimumOp>([&](auto) { return arith::MinSIOp::create(b, x[0], x[1]); })
      .Case<nn::AndOp>([&](auto) { return arith::AndIOp::create(b, x[0], x[1]); })
      .Case<nn::OrOp>([&](auto) { return arith::OrIOp::create(b, x[0], x[1]); })
      .Case<nn::XorOp>([&](auto) { return arith::XOrIOp::create(b, x[0], x[1]); })
      .Default([](Operation *) { return Value(); });
}

/// The number of a code of f4E2M1FN, of 32 bits: twice the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6
/// are the digits of a constant.
static Value widenF4(ImplicitLocOpBuilder &b, Value code) {
  auto constant = [&](int64_t bits) { return emitConstant(b, code.getType(), bits); };
  Value magnitude = arith::AndIOp::create(b, code, constant(7));
  Value digit = arith::ShLIOp::create(b, magnitude, constant(2));
  digit = arith::AndIOp::create(b, arith::ShRUIOp::create(b, constant(0xc8643210), digit), constant(15));
  Value number = arith::SIToFPOp::create(b, withShapeOf(code.getType(), b.getF32Type()), digit);
  number = arith::MulFOp::create(b, number, emitConstant(b, number.getType(), 0.5));
  Value sign = arith::ShLIOp::create(b, arith::AndIOp::create(b, code, constant(8)), constant(28));
  Value bits = arith::OrIOp::create(b, arith::BitcastOp::create(b, code.getType(), number), sign);
  return arith::BitcastOp::create(b, number.getType(), bits);
}

/// The number of a code of 8 bits that has a sign, `mantissa` bits behind its exponent, and the bits
/// of a f32 divided by 2^`power`. Magnitudes of `special` and above are not finite.
static Value widenF8(ImplicitLocOpBuilder &b, Value code, int mantissa, int power, int64_t special) {
  auto constant = [&](int64_t bits) { return emitConstant(b, code.getType(), bits); };
  Type f32 = withShapeOf(code.getType(), b.getF32Type());
  Value magnitude = arith::AndIOp::create(b, code, constant(0x7f));
  Value shifted = arith::ShLIOp::create(b, magnitude, constant(23 - mantissa));
  Value number = arith::MulFOp::create(b, arith::BitcastOp::create(b, f32, shifted),
                                       emitConstant(b, f32, std::ldexp(1.0, power)));
  // Infinity has a mantissa of zeros in f32, too.
  Value notFinite = arith::OrIOp::create(b, shifted, constant(0x7f800000));
  Value isSpecial = arith::CmpIOp::create(b, arith::CmpIPredicate::uge, magnitude, constant(special));
  Value bits = arith::SelectOp::create(b, isSpecial, notFinite,
                                       arith::BitcastOp::create(b, code.getType(), number));
  Value sign = arith::ShLIOp::create(b, arith::AndIOp::create(b, code, constant(0x80)), constant(24));
  return arith::BitcastOp::create(b, f32, arith::OrIOp::create(b, bits, sign));
}

/// 2^(code - 127), and NaN for 255.
static Value widenE8M0(ImplicitLocOpBuilder &b, Value code) {
  auto constant = [&](int64_t bits) { return emitConstant(b, code.getType(), bits); };
  auto choose = [&](int64_t special, int64_t instead, Value other) -> Value {
    Value is = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, code, constant(special));
    return arith::SelectOp::create(b, is, constant(instead), other);
  };
  Value bits = arith::ShLIOp::create(b, code, constant(23));
  bits = choose(0, 0x00400000, choose(255, 0x7fc00000, bits));
  return arith::BitcastOp::create(b, withShapeOf(code.getType(), b.getF32Type()), bits);
}

/// `x` has the code, as a byte, and which half of it counts.
static Value emitWiden(ImplicitLocOpBuilder &b, nn::WidenOp op, ValueRange x) {
  Type element = getElementTypeOrSelf(op.getCodes().getType());
  Type i32 = withShapeOf(x[0].getType(), b.getI32Type());
  bool asNumber = isa<FloatType>(getElementTypeOrSelf(op.getType()));
  if (element.isInteger(8) && asNumber && x.size() == 1)
    return emitCast(b, x[0], b.getF32Type());
  Value code = arith::ExtUIOp::create(b, i32, x[0]);
  if (x.size() == 2) {
    Value offset = arith::ShLIOp::create(b, x[1], emitConstant(b, i32, 2));
    code = arith::AndIOp::create(b, arith::ShRUIOp::create(b, code, offset), emitConstant(b, i32, 15));
  }
  if (!asNumber)
    return code;
  return TypeSwitch<Type, Value>(element)
      .Case([&](Float8E4M3FNType) { return widenF8(b, code, 3, 120, 0x7f); })
      .Case([&](Float8E5M2Type) { return widenF8(b, code, 2, 112, 0x7c); })
      .Case([&](Float8E8M0FNUType) { return widenE8M0(b, code); })
      .Default([&](Type) { return widenF4(b, code); });
}

/// `x` has the element, the index, the seed and the step.
static Value emitDropout(ImplicitLocOpBuilder &b, nn::DropoutOp op, ValueRange x) {
  double probability = op.getProbability().convertToDouble();
  Value isKept = emitIsKept(b, x[1], {x[2], x[3], int64_t(op.getStream())}, probability);
  Value wide = emitCast(b, x[0], getComputeType(getElementTypeOrSelf(x[0].getType())));
  wide = arith::MulFOp::create(b, wide, emitConstant(b, wide.getType(), 1 / (1 - probability)));
  wide = arith::SelectOp::create(b, isKept, wide, emitConstant(b, wide.getType(), 0));
  return emitCast(b, wide, getElementTypeOrSelf(x[0].getType()));
}

Value emitElement(ImplicitLocOpBuilder &builder, Operation *op, ValueRange operands,
                  LaneOrder order) {
  Type result = getElementTypeOrSelf(op->getResult(0).getType());
  if (isa<nn::CastOp>(op))
    return emitCast(builder, operands[0], result, order);
  if (isMovement(op))
    return operands[0];
  if (auto widen = dyn_cast<nn::WidenOp>(op))
    return emitWiden(builder, widen, operands);
  if (auto dropout = dyn_cast<nn::DropoutOp>(op))
    return emitDropout(builder, dropout, operands);
  if (auto random = dyn_cast<nn::RandomOp>(op))
    return emitUniform(builder, operands[0], {operands[1], operands[2], int64_t(random.getStream())});
  if (isa<nn::SelectOp>(op)) {
    // LLVM would widen bf16 and narrow it again, by a call of a library that is not there.
    if (!result.isBF16())
      return arith::SelectOp::create(builder, operands[0], operands[1], operands[2]);
    Value chosen = arith::SelectOp::create(builder, operands[0], asBits(builder, operands[1]),
                                           asBits(builder, operands[2]));
    return arith::BitcastOp::create(builder, operands[1].getType(), chosen);
  }
  SmallVector<Value, 2> wide;
  for (Value operand : operands)
    wide.push_back(
        emitCast(builder, operand, getComputeType(getElementTypeOrSelf(operand.getType())), order));
  if (auto compare = dyn_cast<nn::CompareOp>(op))
    return emitCompare(builder, compare.getKind(), wide[0], wide[1]);
  Value value =
      isa<FloatType>(result) ? emitFloat(builder, op, wide) : emitInteger(builder, op, wide);
  return value ? emitCast(builder, value, result, order) : Value();
}

} // namespace meshwright::lower

//===- GpuMath.cpp - functions on GPUs ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/Gpu/LowerKernels.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace {
using meshwright::lower::emitConstant;

Type withElement(Type like, Type element) {
  auto vector = dyn_cast<VectorType>(like);
  return vector ? Type(vector.clone(element)) : element;
}

/// e^x of results with few digits (bf16): ex2.approx, to 2^-22 of 2^(x / ln 2).
struct ExpandRoughExp : OpRewritePattern<math::ExpOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(math::ExpOp op, PatternRewriter &rewriter) const override {
    if (!getElementTypeOrSelf(op.getType()).isF32() ||
        !arith::bitEnumContainsAll(op.getFastmath(), arith::FastMathFlags::afn))
      return rewriter.notifyMatchFailure(op, "not a rough exponential of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Value power =
        arith::MulFOp::create(b, op.getOperand(), emitConstant(b, op.getType(), M_LOG2E));
    rewriter.replaceOpWithNewOp<math::Exp2Op>(op, power, op.getFastmath());
    return success();
  }
};

/// Sine or cosine of f32: x = n pi / 2 + r in f64, and polynomials of r in f32. Accurate to two
/// units in the last place for numbers below 2^30.
template <typename Op> struct ExpandTrigonometric : OpRewritePattern<Op> {
  using OpRewritePattern<Op>::OpRewritePattern;

  LogicalResult matchAndRewrite(Op op, PatternRewriter &rewriter) const override {
    Type type = op.getType();
    if (!getElementTypeOrSelf(type).isF32())
      return rewriter.notifyMatchFailure(op, "not f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Type f64 = withElement(type, b.getF64Type()), i32 = withElement(type, b.getI32Type());
    auto polynomial = [&](Value x, ArrayRef<double> coefficients) {
      Value sum = emitConstant(b, type, coefficients.front());
      for (double coefficient : coefficients.drop_front())
        sum = math::FmaOp::create(b, sum, x, emitConstant(b, type, coefficient));
      return sum;
    };
    Value x = arith::ExtFOp::create(b, f64, op.getOperand());
    Value n = math::RoundEvenOp::create(
        b, arith::MulFOp::create(b, x, emitConstant(b, f64, M_2_PI)));
    Value minus = arith::NegFOp::create(b, n);
    Value rest = math::FmaOp::create(b, minus, emitConstant(b, f64, M_PI_2), x);
    rest = math::FmaOp::create(b, minus, emitConstant(b, f64, 6.123233995736766e-17), rest);
    Value r = arith::TruncFOp::create(b, type, rest), square = arith::MulFOp::create(b, r, r);
    Value sine = polynomial(square, {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1});
    sine = math::FmaOp::create(b, arith::MulFOp::create(b, sine, square), r, r);
    Value cosine = polynomial(
        square, {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5, 1.0});
    Value quadrant = arith::FPToSIOp::create(b, i32, n);
    if (isa<math::CosOp>(op.getOperation()))
      quadrant = arith::AddIOp::create(b, quadrant, emitConstant(b, i32, 1));
    auto hasBit = [&](int64_t bit) -> Value {
      Value masked = arith::AndIOp::create(b, quadrant, emitConstant(b, i32, bit));
      return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, masked, emitConstant(b, i32, 0));
    };
    Value result = arith::SelectOp::create(b, hasBit(1), cosine, sine);
    rewriter.replaceOpWithNewOp<arith::SelectOp>(op, hasBit(2), arith::NegFOp::create(b, result),
                                                 result);
    return success();
  }
};

/// Logarithms of f64: x = 2^n m with m near 1, and log m = 2 artanh((m - 1) / (m + 1)) as a series.
/// Accurate to two units in the last place.
struct ExpandWideLog : OpRewritePattern<math::LogOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(math::LogOp op, PatternRewriter &rewriter) const override {
    Type type = op.getType(), i64 = withElement(type, rewriter.getI64Type());
    if (!getElementTypeOrSelf(type).isF64())
      return rewriter.notifyMatchFailure(op, "not f64");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto number = [&](double value) { return emitConstant(b, type, value); };
    auto choose = [&](Value condition, Value x, Value y) -> Value {
      return arith::SelectOp::create(b, condition, x, y);
    };
    auto compare = [&](arith::CmpFPredicate predicate, Value x, double y) -> Value {
      return arith::CmpFOp::create(b, predicate, x, number(y));
    };
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Value x = op.getOperand(), scaled = arith::MulFOp::create(b, x, number(0x1p54));
    Value isSmall = compare(arith::CmpFPredicate::OLT, x, 0x1p-1022);
    Value bits = arith::BitcastOp::create(b, i64, choose(isSmall, scaled, x));
    Value exponent = arith::ShRUIOp::create(b, bits, emitConstant(b, i64, 52));
    Value n = arith::SIToFPOp::create(b, type, exponent);
    n = arith::SubFOp::create(b, n, choose(isSmall, number(1023 + 54), number(1023)));
    Value mantissa =
        arith::AndIOp::create(b, bits, emitConstant(b, i64, double((int64_t(1) << 52) - 1)));
    mantissa = arith::OrIOp::create(b, mantissa, emitConstant(b, i64, double(int64_t(1023) << 52)));
    Value m = arith::BitcastOp::create(b, type, mantissa);
    Value isLarge = compare(arith::CmpFPredicate::OGT, m, M_SQRT2);
    m = choose(isLarge, arith::MulFOp::create(b, m, number(0.5)), m);
    n = choose(isLarge, arith::AddFOp::create(b, n, number(1)), n);
    Value z = arith::DivFOp::create(b, arith::SubFOp::create(b, m, number(1)),
                                    arith::AddFOp::create(b, m, number(1)));
    Value square = arith::MulFOp::create(b, z, z), series = number(2.0 / 23);
    for (int64_t k = 21; k > 0; k -= 2)
      series = math::FmaOp::create(b, series, square, number(2.0 / k));
    // ln 2 in two parts: a multiple of the first one has no error.
    constexpr double high = 0x1.62e42fefa38p-1, low = 0x1.ef35793c7673p-45;
    Value sum = math::FmaOp::create(b, n, number(low), arith::MulFOp::create(b, z, series));
    sum = math::FmaOp::create(b, n, number(high), sum);
    sum = choose(compare(arith::CmpFPredicate::OEQ, x, 0), number(-infinity), sum);
    sum = choose(compare(arith::CmpFPredicate::OEQ, x, infinity), x, sum);
    Value isNone = compare(arith::CmpFPredicate::ULT, x, 0);
    rewriter.replaceOp(
        op, choose(isNone, number(std::numeric_limits<double>::quiet_NaN()), sum));
    return success();
  }
};

/// x - y * trunc(x / y) of f32 through f64, exact for quotients below 2^29.
struct ExpandRemainder : OpRewritePattern<arith::RemFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::RemFOp op, PatternRewriter &rewriter) const override {
    Type type = op.getType();
    if (!getElementTypeOrSelf(type).isF32())
      return rewriter.notifyMatchFailure(op, "not f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Type f64 = withElement(type, b.getF64Type());
    Value x = arith::ExtFOp::create(b, f64, op.getLhs());
    Value y = arith::ExtFOp::create(b, f64, op.getRhs());
    Value quotient = math::TruncOp::create(b, arith::DivFOp::create(b, x, y));
    Value rest = math::FmaOp::create(b, arith::NegFOp::create(b, quotient), y, x);
    rest = arith::TruncFOp::create(b, type, rest);
    // A finite number is its own remainder by infinity.
    Value isInfinite = arith::CmpFOp::create(
        b, arith::CmpFPredicate::OEQ, math::AbsFOp::create(b, op.getRhs()),
        emitConstant(b, type, std::numeric_limits<double>::infinity()));
    Value isFinite = arith::CmpFOp::create(
        b, arith::CmpFPredicate::ONE, math::AbsFOp::create(b, op.getLhs()),
        emitConstant(b, type, std::numeric_limits<double>::infinity()));
    rewriter.replaceOpWithNewOp<arith::SelectOp>(
        op, arith::AndIOp::create(b, isInfinite, isFinite), op.getLhs(), rest);
    return success();
  }
};

/// Calls of libdevice, element by element.
template <typename Op> struct CallLibdevice : OpRewritePattern<Op> {
  CallLibdevice(MLIRContext *context, StringRef name)
      : OpRewritePattern<Op>(context), name(name) {}

  LogicalResult matchAndRewrite(Op op, PatternRewriter &rewriter) const override {
    Type type = op->getResult(0).getType(), element = getElementTypeOrSelf(type);
    bool isF32 = element.isF32() && isa<math::PowFOp>(op.getOperation());
    if (!element.isF64() && !isF32)
      return rewriter.notifyMatchFailure(op, "expanded otherwise");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    std::string callee = ("__nv_" + name + (isF32 ? "f" : "")).str();
    auto module = op->template getParentOfType<ModuleOp>();
    if (!module.lookupSymbol(callee)) {
      OpBuilder::InsertionGuard guard(b);
      b.setInsertionPointToStart(module.getBody());
      SmallVector<Type> arguments(op->getNumOperands(), element);
      func::FuncOp::create(b, callee, b.getFunctionType(arguments, element)).setPrivate();
    }
    auto call = [&](ValueRange operands) -> Value {
      return func::CallOp::create(b, callee, element, operands).getResult(0);
    };
    auto vector = dyn_cast<VectorType>(type);
    if (!vector) {
      rewriter.replaceOp(op, call(op->getOperands()));
      return success();
    }
    SmallVector<Value> results;
    for (int64_t i = 0; i < vector.getNumElements(); ++i) {
      SmallVector<Value> operands;
      for (Value operand : op->getOperands())
        operands.push_back(vector::ExtractOp::create(b, operand, i));
      results.push_back(call(operands));
    }
    rewriter.replaceOpWithNewOp<vector::FromElementsOp>(op, vector, results);
    return success();
  }

  StringRef name;
};
} // namespace

void meshwright::lower::addGpuMathPatterns(RewritePatternSet &patterns) {
  MLIRContext *context = patterns.getContext();
  patterns.add<ExpandRoughExp>(context, /*benefit=*/2);
  patterns.add<ExpandTrigonometric<math::SinOp>, ExpandTrigonometric<math::CosOp>, ExpandWideLog,
               ExpandRemainder>(context);
  patterns.add<CallLibdevice<math::ExpOp>>(context, "exp");
  patterns.add<CallLibdevice<math::TanhOp>>(context, "tanh");
  patterns.add<CallLibdevice<math::ErfOp>>(context, "erf");
  patterns.add<CallLibdevice<math::SinOp>>(context, "sin");
  patterns.add<CallLibdevice<math::CosOp>>(context, "cos");
  patterns.add<CallLibdevice<math::PowFOp>>(context, "pow");
  patterns.add<CallLibdevice<arith::RemFOp>>(context, "fmod");
}

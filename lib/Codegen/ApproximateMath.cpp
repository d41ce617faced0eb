//===- ApproximateMath.cpp - functions of f32 in vector instructions ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/ApproximateMath.h"

#include "meshwright/lib/Codegen/Elements.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/Matchers.h"

#include <limits>

using namespace mlir;

namespace {
/// Returns true if the result has few digits (bf16), so that an error of 2e-4 is allowed.
bool isCoarse(arith::FastMathFlags flags) {
  return arith::bitEnumContainsAll(flags, arith::FastMathFlags::afn);
}

/// Calls an intrinsic of AVX-512 on vectors of f32 of any length, register by register.
/// Its arguments are a register of each vector, `between`, the values of masked elements, and
/// `more`.
Value callOnRegisters(ImplicitLocOpBuilder &b, StringRef name, ArrayRef<Value> vectors,
                      ArrayRef<Value> between, ArrayRef<Value> more) {
  constexpr int64_t lanes = 16;
  auto type = cast<VectorType>(vectors.front().getType());
  int64_t count = type.getNumElements(), padded = llvm::alignTo(count, lanes);
  auto registers = VectorType::get(lanes, b.getF32Type());
  auto call = [&](ArrayRef<Value> parts) -> Value {
    SmallVector<Value> arguments(parts);
    llvm::append_range(arguments, between);
    // The values of masked elements. No element is masked.
    arguments.push_back(parts.front());
    llvm::append_range(arguments, more);
    return LLVM::CallIntrinsicOp::create(b, registers, b.getStringAttr(name), arguments)
        .getResult(0);
  };
  if (count == lanes)
    return call(vectors);
  auto wide = VectorType::get(padded, b.getF32Type());
  SmallVector<Value> whole;
  for (Value vector : vectors) {
    if (padded != count) {
      Value zero = arith::ConstantOp::create(b, b.getZeroAttr(wide));
      vector = vector::InsertStridedSliceOp::create(b, vector, zero, ArrayRef<int64_t>{0},
                                                    ArrayRef<int64_t>{1});
    }
    whole.push_back(vector);
  }
  Value result = arith::ConstantOp::create(b, b.getZeroAttr(wide));
  for (int64_t at = 0; at < padded; at += lanes) {
    SmallVector<Value> parts;
    for (Value vector : whole)
      parts.push_back(vector::ExtractStridedSliceOp::create(b, vector, at, lanes, int64_t(1)));
    result = vector::InsertStridedSliceOp::create(b, call(parts), result, ArrayRef<int64_t>{at},
                                                  ArrayRef<int64_t>{1});
  }
  if (padded != count)
    result = vector::ExtractStridedSliceOp::create(b, result, int64_t(0), count, int64_t(1));
  return result;
}

/// e^x of f32, to one unit in the last place, in fewer instructions than MLIR's expansion:
/// x = n ln 2 + r, and e^x is a polynomial of r times 2^n. AVX-512 multiplies by 2^n in one
/// instruction. Other processors give 0 for x below -87.3.
struct ExpandExp : OpRewritePattern<math::ExpOp> {
  ExpandExp(MLIRContext *context, bool hasAvx512)
      : OpRewritePattern(context), hasAvx512(hasAvx512) {}

  LogicalResult matchAndRewrite(math::ExpOp op, PatternRewriter &rewriter) const override {
    Type type = op.getType();
    if (!getElementTypeOrSelf(type).isF32())
      return rewriter.notifyMatchFailure(op, "not f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto shaped = [&](Type element) -> Type {
      auto vector = dyn_cast<VectorType>(type);
      return vector ? Type(vector.clone(element)) : element;
    };
    Type integer = shaped(b.getI32Type());
    auto constant = [&](double value) { return meshwright::lower::emitConstant(b, type, value); };
    auto fma = [&](Value x, Value y, Value z) -> Value { return math::FmaOp::create(b, x, y, z); };
    auto choose = [&](arith::CmpFPredicate predicate, Value x, double bound, Value value,
                      Value other) -> Value {
      Value isBeyond = arith::CmpFOp::create(b, predicate, x, constant(bound));
      return arith::SelectOp::create(b, isBeyond, value, other);
    };
    bool scales = hasAvx512 && isa<VectorType>(type), isRough = isCoarse(op.getFastmath());
    Value x = op.getOperand();
    if (scales && isRough) {
      rewriter.replaceOp(op, expandRoughly(b, x));
      return success();
    }
    // Below `least` the result is 0, above `most` it is infinity. NaN remains NaN.
    constexpr double least = -104, most = 89;
    if (scales) {
      x = choose(arith::CmpFPredicate::OLT, x, least, constant(least), x);
      x = choose(arith::CmpFPredicate::OGT, x, most, constant(most), x);
    }
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    Value magic = constant(12582912.0);
    Value shifted = fma(x, constant(1.44269504088896341), magic);
    Value n = arith::SubFOp::create(b, shifted, magic);
    Value p;
    if (isRough) {
      Value r = fma(n, constant(-0.6931471805599453), x);
      p = constant(0.04127395);
      for (double coefficient : {0.16754383, 0.50005218, 1.0, 1.0})
        p = fma(p, r, constant(coefficient));
    } else {
      Value r = fma(n, constant(-0.693359375), x);
      r = fma(n, constant(2.12194440e-4), r);
      p = constant(1.9875691500e-4);
      for (double coefficient :
           {1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1})
        p = fma(p, r, constant(coefficient));
      p = fma(p, arith::MulFOp::create(b, r, r), r);
      p = arith::AddFOp::create(b, p, constant(1));
    }
    if (scales) {
      Value all = arith::ConstantOp::create(b, b.getI16IntegerAttr(-1));
      // The current rounding mode.
      Value rounding = arith::ConstantOp::create(b, b.getI32IntegerAttr(4));
      rewriter.replaceOp(op, callOnRegisters(b, kScale, {p, n}, {}, {all, rounding}));
      return success();
    }
    // 2^(n - 1), so that n = 128 is in range.
    Value bits = arith::BitcastOp::create(b, integer, shifted);
    bits = arith::ShLIOp::create(b, bits, meshwright::lower::emitConstant(b, integer, 23));
    bits = arith::AddIOp::create(b, bits, meshwright::lower::emitConstant(b, integer, 126 << 23));
    Value scale = arith::BitcastOp::create(b, type, bits);
    Value result = arith::MulFOp::create(b, arith::AddFOp::create(b, p, p), scale);
    result = choose(arith::CmpFPredicate::OLT, x, -87.3, constant(0), result);
    result = choose(arith::CmpFPredicate::OGT, x, 88.7228317,
                    constant(std::numeric_limits<double>::infinity()), result);
    rewriter.replaceOp(op, result);
    return success();
  }

  /// e^x to 8e-5, for AVX-512: y = x / ln 2, and e^x is a polynomial of y - floor(y) times
  /// 2^floor(y). The last instruction computes floor(y) itself. Each step is right for
  /// infinities.
  static Value expandRoughly(ImplicitLocOpBuilder &b, Value x) {
    auto constant = [&](double value) {
      return meshwright::lower::emitConstant(b, x.getType(), value);
    };
    Value all = arith::ConstantOp::create(b, b.getI16IntegerAttr(-1));
    Value rounding = arith::ConstantOp::create(b, b.getI32IntegerAttr(4));
    // The instruction then returns y - floor(y).
    Value down = arith::ConstantOp::create(b, b.getI32IntegerAttr(9));
    Value y = arith::MulFOp::create(b, x, constant(1.44269504088896341));
    Value r =
        callOnRegisters(b, "llvm.x86.avx512.mask.reduce.ps.512", {y}, {down}, {all, rounding});
    Value p = constant(0.0780245231);
    for (double coefficient : {0.226067168, 0.695833529, 0.99992522})
      p = math::FmaOp::create(b, p, r, constant(coefficient));
    return callOnRegisters(b, kScale, {p, y}, {}, {all, rounding});
  }

  static constexpr StringLiteral kScale = "llvm.x86.avx512.mask.scalef.ps.512";
  bool hasAvx512;
};

/// 1 / x of results with few digits: the processor's estimate, to 6e-5.
struct ExpandReciprocal : OpRewritePattern<arith::DivFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::DivFOp op, PatternRewriter &rewriter) const override {
    auto type = dyn_cast<VectorType>(op.getType());
    if (!type || !type.getElementType().isF32() || !isCoarse(op.getFastmath()) ||
        !matchPattern(op.getLhs(), m_OneFloat()))
      return rewriter.notifyMatchFailure(op, "not a rough reciprocal of vectors of f32");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Value all = arith::ConstantOp::create(b, b.getI16IntegerAttr(-1));
    Value x = op.getRhs();
    rewriter.replaceOp(op, callOnRegisters(b, "llvm.x86.avx512.rcp14.ps.512", {x}, {}, {all}));
    return success();
  }
};
} // namespace

void meshwright::lower::addMathPatterns(RewritePatternSet &patterns, bool hasAvx512) {
  populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
    return name == math::LogOp::getOperationName() || name == math::TanhOp::getOperationName() ||
           name == math::ErfOp::getOperationName();
  });
  patterns.add<ExpandExp>(patterns.getContext(), hasAvx512);
  if (hasAvx512)
    patterns.add<ExpandReciprocal>(patterns.getContext());
}

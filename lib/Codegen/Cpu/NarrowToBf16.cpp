//===- NarrowToBf16.cpp - f32 to bf16 on processors -----------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/KernelPatterns.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;

namespace {
/// f32 to bf16 in integer arithmetic, which rounds to nearest even. The result is not a
/// selection as in MLIR's own expansion: LLVM turns that into a selection of bf16, and calls
/// functions for it that no library has.
struct ExpandTruncationToBf16 : OpRewritePattern<arith::TruncFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::TruncFOp op, PatternRewriter &rewriter) const override {
    Type from = op.getIn().getType(), to = op.getType();
    if (!getElementTypeOrSelf(from).isF32() || !getElementTypeOrSelf(to).isBF16())
      return rewriter.notifyMatchFailure(op, "not f32 to bf16");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    auto withShape = [&](Type type, Type element) -> Type {
      auto shaped = dyn_cast<ShapedType>(type);
      return shaped ? Type(shaped.clone(element)) : element;
    };
    Type words = withShape(from, b.getI32Type());
    auto constant = [&](int32_t value) -> Value {
      TypedAttr attribute = b.getI32IntegerAttr(value);
      if (auto shaped = dyn_cast<ShapedType>(words))
        attribute = DenseElementsAttr::get(shaped, Attribute(attribute));
      return arith::ConstantOp::create(b, attribute);
    };
    Value bits = arith::BitcastOp::create(b, words, op.getIn());
    Value sixteen = constant(16);
    Value odd = arith::AndIOp::create(b, arith::ShRUIOp::create(b, bits, sixteen), constant(1));
    Value half = arith::AddIOp::create(b, odd, constant(0x7fff));
    // NaNs become quiet and are truncated.
    Value isNan = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, op.getIn(), op.getIn());
    Value zero = constant(0);
    Value quiet = arith::SelectOp::create(b, isNan, constant(0x400000), zero);
    Value carry = arith::SelectOp::create(b, isNan, zero, half);
    Value rounded = arith::AddIOp::create(b, arith::OrIOp::create(b, bits, quiet), carry);
    rounded = arith::ShRUIOp::create(b, rounded, sixteen);
    Value halves = arith::TruncIOp::create(b, withShape(from, b.getI16Type()), rounded);
    rewriter.replaceOpWithNewOp<arith::BitcastOp>(op, to, halves);
    return success();
  }
};

/// f32 to bf16, two registers at a time.
struct NarrowPairs : OpRewritePattern<arith::TruncFOp> {
  using OpRewritePattern::OpRewritePattern;

  LogicalResult matchAndRewrite(arith::TruncFOp op, PatternRewriter &rewriter) const override {
    constexpr int64_t pair = 32;
    auto from = dyn_cast<VectorType>(op.getIn().getType()), to = dyn_cast<VectorType>(op.getType());
    if (!from || from.getRank() != 1 || from.getNumElements() % pair != 0 ||
        !from.getElementType().isF32() || !to.getElementType().isBF16())
      return rewriter.notifyMatchFailure(op, "not pairs of registers, f32 to bf16");
    ImplicitLocOpBuilder b(op.getLoc(), rewriter);
    Value result;
    for (int64_t at = 0, count = from.getNumElements(); at < count; at += pair) {
      auto half = [&](int64_t begin) -> Value {
        return vector::ExtractStridedSliceOp::create(b, op.getIn(), at + begin, pair / 2,
                                                     int64_t(1));
      };
      Value narrow =
          LLVM::CallIntrinsicOp::create(b, VectorType::get(pair, to.getElementType()),
                                        b.getStringAttr("llvm.x86.avx512bf16.cvtne2ps2bf16.512"),
                                        {half(pair / 2), half(0)})
              .getResult(0);
      if (count == pair) {
        result = narrow;
        break;
      }
      if (!result)
        result = arith::ConstantOp::create(b, b.getZeroAttr(to));
      result = vector::InsertStridedSliceOp::create(b, narrow, result, ArrayRef<int64_t>{at},
                                                    ArrayRef<int64_t>{1});
    }
    rewriter.replaceOp(op, result);
    return success();
  }
};
} // namespace

void meshwright::lower::addNarrowingPatterns(RewritePatternSet &patterns,
                                             const Processor &processor) {
  if (processor.narrowsPairs())
    patterns.add<NarrowPairs>(patterns.getContext());
  if (!processor.hasBf16Conversion) {
    arith::populateExpandBFloat16Patterns(patterns);
    patterns.add<ExpandTruncationToBf16>(patterns.getContext(), /*benefit=*/2);
  }
}

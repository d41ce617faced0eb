//===- LowerKernels.cpp - kernels to the LLVM dialect ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/LowerKernels.h"

#include "meshwright/lib/Codegen/Elements.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Math/Transforms/Passes.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Dialect/X86Vector/X86VectorDialect.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

#include <limits>

using namespace mlir;

namespace {
/// f32 to bf16 in integers, rounding to nearest even. The result must not be a
/// selection, as in MLIR's own expansion: LLVM makes it one of bf16, and calls
/// functions for it that nobody has.
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
    // NaNs are made quiet and cut off.
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

/// Whether something is for a result of few digits (bf16), so that 2e-4 is near
/// enough.
bool isCoarse(arith::FastMathFlags flags) {
  return arith::bitEnumContainsAll(flags, arith::FastMathFlags::afn);
}

/// Calls a function of AVX-512 on vectors of f32 of any length, registers at a
/// time. Its other arguments are those `between` the vectors and what masked-off
/// elements would be, and `more` behind that.
Value callOnRegisters(ImplicitLocOpBuilder &b, StringRef name, ArrayRef<Value> vectors,
                      ArrayRef<Value> between, ArrayRef<Value> more) {
  constexpr int64_t lanes = 16;
  auto type = cast<VectorType>(vectors.front().getType());
  int64_t count = type.getNumElements(), padded = llvm::alignTo(count, lanes);
  auto registers = VectorType::get(lanes, b.getF32Type());
  auto call = [&](ArrayRef<Value> parts) -> Value {
    SmallVector<Value> arguments(parts);
    llvm::append_range(arguments, between);
    // What masked-off elements would be: there are none.
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

/// e^x of f32, to one unit in the last place, in fewer instructions than
/// MLIR's: x = n ln 2 + r, a polynomial of r, times 2^n. AVX-512 multiplies by 2^n
/// in one; elsewhere what is below -87.3 is 0.
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
    // Beyond these it is 0, or infinity. NaN stays.
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
      // Rounding as it is set.
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

  /// To 8e-5: x / ln 2 = y, a polynomial of what y is above an integer, times two to
  /// that integer, which the last step takes itself. Each is right for infinities.
  static Value expandRoughly(ImplicitLocOpBuilder &b, Value x) {
    auto constant = [&](double value) {
      return meshwright::lower::emitConstant(b, x.getType(), value);
    };
    Value all = arith::ConstantOp::create(b, b.getI16IntegerAttr(-1));
    Value rounding = arith::ConstantOp::create(b, b.getI32IntegerAttr(4));
    // What is left by rounding down.
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

/// 1 / x where few digits do: the processor's estimate, to 6e-5.
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

/// Spells functions of f32 as polynomials, which LLVM vectorises. Sine and
/// cosine stay calls: their polynomials are off by 5e-4 for large arguments.
struct ApproximateMath : PassWrapper<ApproximateMath, OperationPass<>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ApproximateMath)

  explicit ApproximateMath(const meshwright::Processor &processor)
      : expandBf16(!processor.hasBf16Conversion), narrowsPairs(processor.narrowsPairs()),
        hasAvx512(processor.vectorBytes == 64) {}

  void getDependentDialects(DialectRegistry &registry) const override {
    registry
        .insert<arith::ArithDialect, LLVM::LLVMDialect, math::MathDialect, vector::VectorDialect>();
  }

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return name == math::LogOp::getOperationName() || name == math::TanhOp::getOperationName() ||
             name == math::ErfOp::getOperationName();
    });
    patterns.add<ExpandExp>(&getContext(), hasAvx512);
    if (hasAvx512)
      patterns.add<ExpandReciprocal>(&getContext());
    if (narrowsPairs)
      patterns.add<NarrowPairs>(&getContext());
    arith::populateCeilFloorDivExpandOpsPatterns(patterns);
    if (expandBf16) {
      arith::populateExpandBFloat16Patterns(patterns);
      patterns.add<ExpandTruncationToBf16>(&getContext(), /*benefit=*/2);
    }
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }

  bool expandBf16, narrowsPairs, hasAvx512;
};
} // namespace

void meshwright::lower::loadKernelDialects(MLIRContext &context) {
  context.loadDialect<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect,
                      LLVM::LLVMDialect, math::MathDialect, memref::MemRefDialect, scf::SCFDialect,
                      vector::VectorDialect, x86vector::X86VectorDialect>();
}

/// Whether a kernel is one that the runtime launches: its last arguments are what
/// to do and its workspace.
static bool isLaunched(func::FuncOp kernel) {
  ArrayRef<Type> types = kernel.getArgumentTypes();
  if (types.size() < 3)
    return false;
  auto workspace = dyn_cast<MemRefType>(types.back());
  return workspace && workspace.getElementType().isInteger(8) &&
         types[types.size() - 2].isIndex() && types[types.size() - 3].isIndex();
}

/// Gives the name of a lowered kernel to a function that takes its buffers as an
/// array (`mw_rt_kernel`).
static void addLaunched(LLVM::LLVMFuncOp kernel) {
  OpBuilder builder(kernel);
  Location loc = kernel.getLoc();
  auto pointer = LLVM::LLVMPointerType::get(kernel.getContext());
  auto launched = LLVM::LLVMFuncOp::create(
      builder, loc, kernel.getName(),
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(kernel.getContext()),
                                  {pointer, builder.getI64Type(), builder.getI64Type(), pointer}));
  kernel.setName((kernel.getName() + "_body").str());
  kernel.setLinkage(LLVM::Linkage::Internal);
  Block *block = launched.addEntryBlock(builder);
  builder.setInsertionPointToEnd(block);
  SmallVector<Value> arguments;
  for (int32_t i = 0; i + 3 < int32_t(kernel.getNumArguments()); ++i) {
    Value at = LLVM::GEPOp::create(builder, loc, pointer, pointer, block->getArgument(0),
                                   ArrayRef<LLVM::GEPArg>{i});
    arguments.push_back(LLVM::LoadOp::create(builder, loc, pointer, at));
  }
  for (unsigned i : {1, 2, 3})
    arguments.push_back(block->getArgument(i));
  LLVM::CallOp::create(builder, loc, kernel, arguments);
  LLVM::ReturnOp::create(builder, loc, ValueRange());
}

LogicalResult meshwright::lower::lowerKernel(ModuleOp module, const Processor &processor) {
  llvm::StringSet<> launched;
  for (auto kernel : module.getOps<func::FuncOp>())
    if (!kernel.isExternal() && isLaunched(kernel))
      launched.insert(kernel.getName());
  PassManager manager(module->getContext(), ModuleOp::getOperationName());
  manager.enableVerifier(false);
  OpPassManager &kernels = manager.nest<func::FuncOp>();
  kernels.addPass(std::make_unique<ApproximateMath>(processor));
  kernels.addPass(createCSEPass());
  kernels.addPass(createSCFToControlFlowPass());
  kernels.addPass(createConvertMathToLLVMPass());
  manager.addPass(createConvertMathToLibmPass());
  FinalizeMemRefToLLVMConversionPassOptions memrefs;
  manager.addPass(createFinalizeMemRefToLLVMConversionPass(memrefs));
  ConvertFuncToLLVMPassOptions functions;
  functions.useBarePtrCallConv = true;
  manager.addPass(createConvertFuncToLLVMPass(functions));
  // Makes constants of arith.
  ConvertVectorToLLVMPassOptions vectors;
  vectors.x86Vector = true;
  manager.addPass(createConvertVectorToLLVMPass(vectors));
  manager.addPass(createArithToLLVMConversionPass());
  manager.addPass(createConvertControlFlowToLLVMPass());
  manager.addPass(createReconcileUnrealizedCastsPass());
  if (failed(manager.run(module)))
    return failure();
  for (auto kernel : llvm::to_vector(module.getOps<LLVM::LLVMFuncOp>()))
    if (launched.contains(kernel.getName()))
      addLaunched(kernel);
  // Called from the program's entry, and by nobody outside the program.
  for (auto kernel : module.getOps<LLVM::LLVMFuncOp>())
    if (!kernel.isExternal() && kernel.getLinkage() == LLVM::Linkage::External)
      kernel.setVisibility_(LLVM::Visibility::Hidden);
  return success();
}

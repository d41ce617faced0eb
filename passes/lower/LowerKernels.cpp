//===- LowerKernels.cpp - kernels to the LLVM dialect ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Lower.h"

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
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

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

/// Spells functions of f32 as polynomials, which LLVM vectorises. Sine and
/// cosine stay calls: their polynomials are off by 5e-4 for large arguments.
struct ApproximateMath : PassWrapper<ApproximateMath, OperationPass<>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ApproximateMath)

  explicit ApproximateMath(bool expandBf16) : expandBf16(expandBf16) {}

  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<arith::ArithDialect, math::MathDialect, vector::VectorDialect>();
  }

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    populateMathPolynomialApproximationPatterns(patterns, [](StringRef name) {
      return name == math::ExpOp::getOperationName() || name == math::LogOp::getOperationName() ||
             name == math::TanhOp::getOperationName() || name == math::ErfOp::getOperationName();
    });
    arith::populateCeilFloorDivExpandOpsPatterns(patterns);
    if (expandBf16) {
      arith::populateExpandBFloat16Patterns(patterns);
      patterns.add<ExpandTruncationToBf16>(&getContext(), /*benefit=*/2);
    }
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }

  bool expandBf16;
};
} // namespace

void meshwright::loadKernelDialects(MLIRContext &context) {
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

LogicalResult meshwright::lowerKernel(ModuleOp module, const LowerOptions &options) {
  llvm::StringSet<> launched;
  for (auto kernel : module.getOps<func::FuncOp>())
    if (!kernel.isExternal() && isLaunched(kernel))
      launched.insert(kernel.getName());
  PassManager manager(module->getContext(), ModuleOp::getOperationName());
  manager.enableVerifier(false);
  OpPassManager &kernels = manager.nest<func::FuncOp>();
  kernels.addPass(std::make_unique<ApproximateMath>(!options.target.hasBf16Conversion));
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

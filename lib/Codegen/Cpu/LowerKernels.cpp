//===- LowerKernels.cpp - kernels to the LLVM dialect ---------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Cpu/LowerKernels.h"

#include "meshwright/lib/Codegen/ApproximateMath.h"
#include "meshwright/lib/Codegen/Cpu/KernelPatterns.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Dialect/X86Vector/X86VectorDialect.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace {
/// Rewrites ops that LLVM would compile element by element, or not at all.
struct ExpandForProcessor : PassWrapper<ExpandForProcessor, OperationPass<>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ExpandForProcessor)

  explicit ExpandForProcessor(const meshwright::Processor &processor) : processor(processor) {}

  void getDependentDialects(DialectRegistry &registry) const override {
    registry
        .insert<arith::ArithDialect, LLVM::LLVMDialect, math::MathDialect, vector::VectorDialect>();
  }

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    meshwright::lower::addMathPatterns(patterns, /*hasAvx512=*/processor.vectorBytes == 64);
    meshwright::lower::addNarrowingPatterns(patterns, processor);
    arith::populateCeilFloorDivExpandOpsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }

  const meshwright::Processor &processor;
};
} // namespace

void meshwright::lower::loadKernelDialects(MLIRContext &context) {
  context.loadDialect<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect,
                      LLVM::LLVMDialect, math::MathDialect, memref::MemRefDialect, scf::SCFDialect,
                      vector::VectorDialect, x86vector::X86VectorDialect>();
}

/// Returns true if the runtime launches the kernel: its last arguments are the first and the
/// last item, and the workspace.
static bool isLaunched(func::FuncOp kernel) {
  ArrayRef<Type> types = kernel.getArgumentTypes();
  if (types.size() < 3)
    return false;
  auto workspace = dyn_cast<MemRefType>(types.back());
  return workspace && workspace.getElementType().isInteger(8) &&
         types[types.size() - 2].isIndex() && types[types.size() - 3].isIndex();
}

/// Adds a function of type `mw_rt_kernel`, which takes the buffers as an array and calls the
/// kernel. It gets the kernel's name.
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
  kernels.addPass(std::make_unique<ExpandForProcessor>(processor));
  kernels.addPass(createCSEPass());
  kernels.addPass(createSCFToControlFlowPass());
  kernels.addPass(createConvertMathToLLVMPass());
  manager.addPass(createConvertMathToLibmPass());
  FinalizeMemRefToLLVMConversionPassOptions memrefs;
  manager.addPass(createFinalizeMemRefToLLVMConversionPass(memrefs));
  ConvertFuncToLLVMPassOptions functions;
  functions.useBarePtrCallConv = true;
  manager.addPass(createConvertFuncToLLVMPass(functions));
  // Before the conversion of arith, since this one creates constants of arith.
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
  // Only the program's entry calls kernels.
  for (auto kernel : module.getOps<LLVM::LLVMFuncOp>())
    if (!kernel.isExternal() && kernel.getLinkage() == LLVM::Linkage::External)
      kernel.setVisibility_(LLVM::Visibility::Hidden);
  return success();
}

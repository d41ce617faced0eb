//===- LowerKernels.cpp - GPU kernels to the LLVM dialect -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/LowerKernels.h"

#include "meshwright/lib/Codegen/ApproximateMath.h"
#include "meshwright/lib/Codegen/Gpu/GpuKernelBuilder.h"

#include "mlir/Conversion/Passes.h"
#include "mlir/Dialect/Arith/Transforms/Passes.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/GreedyPatternRewriteDriver.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

namespace {
/// Rewrites functions that NVPTX does not have.
struct ExpandForGpu : PassWrapper<ExpandForGpu, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ExpandForGpu)

  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<arith::ArithDialect, func::FuncDialect, LLVM::LLVMDialect, math::MathDialect,
                    vector::VectorDialect>();
  }

  void runOnOperation() override {
    RewritePatternSet patterns(&getContext());
    meshwright::lower::addMathPatterns(patterns, /*hasAvx512=*/false);
    meshwright::lower::addGpuMathPatterns(patterns);
    arith::populateCeilFloorDivExpandOpsPatterns(patterns);
    if (failed(applyPatternsGreedily(getOperation(), std::move(patterns))))
      signalPassFailure();
  }
};
} // namespace

void meshwright::lower::loadGpuKernelDialects(MLIRContext &context) {
  context.loadDialect<arith::ArithDialect, cf::ControlFlowDialect, func::FuncDialect,
                      LLVM::LLVMDialect, math::MathDialect, memref::MemRefDialect,
                      NVVM::NVVMDialect, scf::SCFDialect, vector::VectorDialect>();
}

/// Makes the last argument, if it points to shared memory of so many bytes, a global. The launch states
/// the size of a large one.
static void makeSharedGlobal(LLVM::LLVMFuncOp kernel, int64_t bytes) {
  if (bytes == 0)
    return;
  OpBuilder builder(kernel);
  bool isStatic = bytes <= meshwright::lower::kMostStaticShared;
  auto type = LLVM::LLVMArrayType::get(builder.getI8Type(), isStatic ? bytes : 0);
  // Swizzled tiles begin at multiples of 1024 bytes.
  auto global = LLVM::GlobalOp::create(
      builder, kernel.getLoc(), type, /*isConstant=*/false,
      isStatic ? LLVM::Linkage::Internal : LLVM::Linkage::External,
      (kernel.getName() + "_shared").str(), Attribute(), /*alignment=*/isStatic ? 16 : 1024,
      meshwright::lower::kSharedSpace);
  builder.setInsertionPointToStart(&kernel.getBody().front());
  Value address = LLVM::AddressOfOp::create(builder, kernel.getLoc(), global);
  unsigned last = kernel.getNumArguments() - 1;
  kernel.getArgument(last).replaceAllUsesWith(address);
  kernel.getBody().front().eraseArgument(last);
  LLVM::LLVMFunctionType all = kernel.getFunctionType();
  kernel.setFunctionType(
      LLVM::LLVMFunctionType::get(all.getReturnType(), all.getParams().drop_back()));
  if (ArrayAttr attributes = kernel.getArgAttrsAttr())
    kernel.setArgAttrsAttr(builder.getArrayAttr(attributes.getValue().drop_back()));
}

/// Passes the last arguments, tensor maps, by value: copies read them where the launch has put them.
static void passTensorMaps(LLVM::LLVMFuncOp kernel, unsigned count) {
  Builder b(kernel.getContext());
  unsigned last = kernel.getNumArguments();
  for (unsigned i = last - count; i < last; ++i) {
    NamedAttribute attributes[] = {
        b.getNamedAttr(LLVM::LLVMDialect::getByValAttrName(),
                       TypeAttr::get(LLVM::LLVMArrayType::get(b.getI64Type(), 16))),
        b.getNamedAttr(LLVM::LLVMDialect::getAlignAttrName(), b.getI64IntegerAttr(64)),
        b.getNamedAttr(NVVM::NVVMDialect::getGridConstantAttrName(), b.getUnitAttr())};
    kernel.setArgAttrs(i, attributes);
  }
}

LogicalResult meshwright::lower::lowerGpuKernel(ModuleOp module) {
  auto written = *module.getOps<func::FuncOp>().begin();
  std::string name = written.getName().str();
  auto threads = written->getAttrOfType<IntegerAttr>(kThreadsAttr);
  auto blocks = written->getAttrOfType<IntegerAttr>(kBlocksAttr);
  auto maps = written->getAttrOfType<DenseI64ArrayAttr>(kTensorMapsAttr);
  auto last = dyn_cast<MemRefType>(written.getArgumentTypes().back());
  int64_t sharedBytes = last && last.getMemorySpace() ? last.getNumElements() : 0;

  PassManager manager(module->getContext(), ModuleOp::getOperationName());
  manager.enableVerifier(false);
  manager.addPass(std::make_unique<ExpandForGpu>());
  OpPassManager &kernels = manager.nest<func::FuncOp>();
  kernels.addPass(createCSEPass());
  kernels.addPass(createSCFToControlFlowPass());
  kernels.addPass(createConvertMathToLLVMPass());
  manager.addPass(createFinalizeMemRefToLLVMConversionPass());
  ConvertFuncToLLVMPassOptions functions;
  functions.useBarePtrCallConv = true;
  manager.addPass(createConvertFuncToLLVMPass(functions));
  manager.addPass(createConvertVectorToLLVMPass());
  manager.addPass(createArithToLLVMConversionPass());
  manager.addPass(createConvertControlFlowToLLVMPass());
  manager.addPass(createReconcileUnrealizedCastsPass());
  if (failed(manager.run(module)))
    return failure();
  auto kernel = module.lookupSymbol<LLVM::LLVMFuncOp>(name);
  makeSharedGlobal(kernel, sharedBytes);
  if (maps)
    passTensorMaps(kernel, maps.size() * sizeof(int64_t) / sizeof(mw_rt_tensor_map));
  kernel.setCConv(LLVM::CConv::PTX_Kernel);
  // ptxas gives as many registers as so many threads can have.
  OpBuilder builder(module->getContext());
  SmallVector<Attribute> limits;
  auto addLimit = [&](StringRef limit, IntegerAttr number) {
    Attribute pair[] = {builder.getStringAttr(limit),
                        builder.getStringAttr(std::to_string(number.getInt()))};
    limits.push_back(builder.getArrayAttr(pair));
  };
  addLimit("nvvm.reqntid", threads);
  if (blocks)
    addLimit("nvvm.minctasm", blocks);
  kernel.setPassthroughAttr(builder.getArrayAttr(limits));
  return success();
}

//===- Codegen.cpp - LLVM dialect to object code --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Codegen.h"

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Cpu.h"

#include "mlir/Parser/Parser.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/MC/MCSubtargetInfo.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/LoopRotation.h"
#include "llvm/Transforms/Scalar/LoopUnrollPass.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"

#include <mutex>

using namespace llvm;

namespace meshwright {

CodeGenerator::~CodeGenerator() = default;

Expected<std::unique_ptr<CodeGenerator>> CodeGenerator::create(const Processor &target) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
  });
  Triple triple(sys::getDefaultTargetTriple());
  std::string error;
  const llvm::Target *registered = TargetRegistry::lookupTarget(triple, error);
  if (!registered)
    return createStringError("no code generator: " + error);
  std::unique_ptr<CodeGenerator> generator(new CodeGenerator());
  generator->target = target;
  // Position-independent: objects are loaded into this process or linked into a
  // shared object.
  generator->machine.reset(registered->createTargetMachine(triple, target.cpu, target.features, {},
                                                           Reloc::PIC_, std::nullopt,
                                                           CodeGenOptLevel::Default));
  if (!generator->machine)
    return createStringError("no code generator for " + target.cpu);
  return generator;
}

/// What helps kernels of LLVM's O2. They are vectors as far as they will ever be, in
/// memory that they were given: the rest takes most of O2's time and makes none faster.
static void optimize(Module &module, TargetMachine &machine) {
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  auto run = [&](FunctionPassManager passes) {
    createModuleToFunctionPassAdaptor(std::move(passes)).run(module, modules);
  };
  FunctionPassManager clean;
  clean.addPass(EarlyCSEPass());
  clean.addPass(InstCombinePass());
  clean.addPass(SimplifyCFGPass());
  LoopPassManager hoist;
  hoist.addPass(LoopRotatePass());
  hoist.addPass(LICMPass(LICMOptions()));
  clean.addPass(createFunctionToLoopPassAdaptor(std::move(hoist), /*UseMemorySSA=*/true));
  run(std::move(clean));
  FunctionPassManager finish;
  // Long kernels were unrolled by who wrote them: LLVM would only take time over them.
  constexpr unsigned most = 100;
  if (module.getInstructionCount() <= most) {
    finish.addPass(LoopUnrollPass(LoopUnrollOptions().setPeeling(false)));
    finish.addPass(InstCombinePass());
    finish.addPass(SimplifyCFGPass());
    finish.addPass(createFunctionToLoopPassAdaptor(LICMPass(LICMOptions()), /*UseMemorySSA=*/true));
  }
  finish.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
  run(std::move(finish));
}

Expected<ObjectCode> CodeGenerator::compile(mlir::ModuleOp module, bool isEntry) {
  mlir::registerBuiltinDialectTranslation(*module->getContext());
  mlir::registerLLVMDialectTranslation(*module->getContext());
  LLVMContext llvmContext;
  std::unique_ptr<Module> translated = mlir::translateModuleToLLVMIR(module, llvmContext);
  if (!translated)
    return createStringError("no translation to LLVM IR");
  translated->setTargetTriple(machine->getTargetTriple());
  translated->setDataLayout(machine->createDataLayout());
  for (Function &function : *translated)
    if (!function.isDeclaration()) {
      function.addFnAttr("target-cpu", target.cpu);
      function.addFnAttr("target-features", target.features);
    }
  if (isEntry) {
    // For whoever loads it.
    Type *type = Type::getInt64Ty(llvmContext);
    new GlobalVariable(*translated, type, /*isConstant=*/true, GlobalValue::ExternalLinkage,
                       ConstantInt::get(type, MW_RT_ABI_VERSION), "mw_abi_version");
  } else {
    optimize(*translated, *machine);
  }
  SmallString<0> object;
  raw_svector_ostream os(object);
  legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, os, nullptr, CodeGenFileType::ObjectFile))
    return createStringError("no object files for " + target.cpu);
  passes.run(*translated);
  return object.str().str();
}

Expected<ObjectCode> CodeGenerator::compileKernel(const KernelSource &kernel) {
  if (!context) {
    context = std::make_unique<mlir::MLIRContext>(mlir::MLIRContext::Threading::DISABLED);
    loadKernelDialects(*context);
  }
  std::string diagnostics;
  mlir::ScopedDiagnosticHandler handler(
      context.get(), [&](mlir::Diagnostic &diagnostic) { diagnostics += ": " + diagnostic.str(); });
  auto fail = [&](StringRef what) {
    return createStringError("kernel '" + kernel.name + "' " + what.str() + diagnostics);
  };
  auto module = mlir::parseSourceString<mlir::ModuleOp>(
      kernel.text, mlir::ParserConfig(context.get(), /*verifyAfterParse=*/false));
  if (!module)
    return fail("cannot be read");
  if (failed(lowerKernel(*module, target)))
    return fail("cannot be lowered");
  Expected<ObjectCode> object = compile(*module, /*isEntry=*/false);
  if (!object)
    return fail("cannot be compiled: " + toString(object.takeError()));
  return object;
}

Expected<ObjectCode> CodeGenerator::compileEntry(mlir::ModuleOp module) {
  return compile(module, /*isEntry=*/true);
}

Expected<std::vector<std::string>> getUsedFeatures(const Processor &target) {
  auto generator = CodeGenerator::create(target);
  if (!generator)
    return generator.takeError();
  std::vector<std::string> features;
  for (const std::string &name : rt::getKnownFeatures())
    if ((*generator)->getMachine().getMCSubtargetInfo()->checkFeatures("+" + name))
      features.push_back(name);
  return features;
}

} // namespace meshwright

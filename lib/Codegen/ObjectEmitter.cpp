//===- ObjectEmitter.cpp - LLVM dialect to object code --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/ObjectEmitter.h"

#include "meshwright-c/Runtime.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/IR/LegacyPassManager.h"
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

ObjectEmitter::~ObjectEmitter() = default;

Expected<std::unique_ptr<ObjectEmitter>> ObjectEmitter::create(const Processor &processor) {
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
  std::unique_ptr<ObjectEmitter> emitter(new ObjectEmitter());
  emitter->processor = processor;
  // Code is position-independent, as it is loaded into this process or linked into a shared
  // object.
  emitter->machine.reset(
      registered->createTargetMachine(triple, processor.cpu, processor.features, {}, Reloc::PIC_,
                                      std::nullopt, CodeGenOptLevel::Default));
  if (!emitter->machine)
    return createStringError("no code generator for " + processor.cpu);
  return emitter;
}

/// Runs the passes of LLVM's O2 that make kernels faster. Kernels are vectorised already and
/// allocate no memory. The other passes take most of O2's time and make no kernel faster.
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
  // Emitters have unrolled long kernels, so unrolling would only take time.
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

Expected<ObjectCode> ObjectEmitter::emit(mlir::ModuleOp module, bool isEntry) {
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
      function.addFnAttr("target-cpu", processor.cpu);
      function.addFnAttr("target-features", processor.features);
    }
  if (!isEntry) {
    optimize(*translated, *machine);
  } else if (translated->getFunction("mw_main")) {
    // The runtime compares the version when it loads the code. The first entry has it.
    Type *type = Type::getInt64Ty(llvmContext);
    new GlobalVariable(*translated, type, /*isConstant=*/true, GlobalValue::ExternalLinkage,
                       ConstantInt::get(type, MW_RT_ABI_VERSION), "mw_abi_version");
  }
  SmallString<0> object;
  raw_svector_ostream os(object);
  legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, os, nullptr, CodeGenFileType::ObjectFile))
    return createStringError("no object files for " + processor.cpu);
  passes.run(*translated);
  return object.str().str();
}

Expected<ObjectCode> ObjectEmitter::emitKernel(mlir::ModuleOp module) {
  return emit(module, /*isEntry=*/false);
}

Expected<ObjectCode> ObjectEmitter::emitEntry(mlir::ModuleOp module) {
  return emit(module, /*isEntry=*/true);
}

} // namespace meshwright

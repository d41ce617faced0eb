//===- PtxEmitter.cpp - LLVM dialect to PTX -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Codegen/Gpu/PtxEmitter.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Bitcode/BitcodeReader.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Linker/Linker.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Triple.h"
#include "llvm/Transforms/IPO/Internalize.h"

#include <cstdlib>
#include <mutex>

using namespace llvm;

namespace meshwright::lower {

PtxEmitter::~PtxEmitter() = default;

Expected<std::unique_ptr<PtxEmitter>> PtxEmitter::create(const Chip &chip) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  Triple triple("nvptx64-nvidia-cuda");
  std::string error;
  const Target *registered = TargetRegistry::lookupTarget(triple, error);
  if (!registered)
    return createStringError("no code generator for GPUs: " + error);
  std::unique_ptr<PtxEmitter> emitter(new PtxEmitter());
  emitter->machine.reset(registered->createTargetMachine(triple, chip.name, chip.features, {},
                                                         std::nullopt, std::nullopt,
                                                         CodeGenOptLevel::Aggressive));
  if (!emitter->machine)
    return createStringError("no code generator for " + chip.name);
  return emitter;
}

/// The functions that the module calls and does not have.
static std::vector<std::string> getMissing(const Module &module) {
  std::vector<std::string> names;
  for (const Function &function : module)
    // The code generator replaces calls of __nvvm_reflect.
    if (function.isDeclaration() && !function.isIntrinsic() && !function.use_empty() &&
        function.getName() != "__nvvm_reflect")
      names.push_back(function.getName().str());
  return names;
}

static std::unique_ptr<MemoryBuffer> readLibdevice() {
  for (const char *variable : {"CUDA_ROOT", "CUDA_HOME", "CUDA_PATH", ""}) {
    const char *folder = *variable ? std::getenv(variable) : "/usr/local/cuda";
    if (!folder)
      continue;
    auto file = MemoryBuffer::getFile(std::string(folder) + "/nvvm/libdevice/libdevice.10.bc");
    if (file)
      return std::move(*file);
  }
  return nullptr;
}

/// Links the functions of libdevice that the module calls.
static Error linkLibdevice(Module &module) {
  std::vector<std::string> missing = getMissing(module);
  if (missing.empty())
    return Error::success();
  std::unique_ptr<MemoryBuffer> file = readLibdevice();
  if (!file)
    return createStringError("calls '" + missing.front() +
                             "' of libdevice: expected nvvm/libdevice/libdevice.10.bc in "
                             "CUDA_HOME or /usr/local/cuda");
  Expected<std::unique_ptr<Module>> library =
      getLazyBitcodeModule(file->getMemBufferRef(), module.getContext());
  if (!library)
    return library.takeError();
  (*library)->setTargetTriple(module.getTargetTriple());
  (*library)->setDataLayout(module.getDataLayout());
  bool failed = Linker::linkModules(
      module, std::move(*library), Linker::LinkOnlyNeeded,
      [](Module &linked, const StringSet<> &names) {
        internalizeModule(linked, [&](const GlobalValue &value) {
          return !value.hasName() || !names.contains(value.getName());
        });
      });
  missing = getMissing(module);
  if (failed || !missing.empty())
    return createStringError("cannot be linked with libdevice" +
                             (missing.empty() ? "" : ": it has no '" + missing.front() + "'"));
  return Error::success();
}

static void optimize(Module &module, TargetMachine &machine) {
  // Emitters write vectors, and unroll short loops.
  PipelineTuningOptions options;
  options.LoopVectorization = false;
  options.SLPVectorization = false;
  LoopAnalysisManager loops;
  FunctionAnalysisManager functions;
  CGSCCAnalysisManager components;
  ModuleAnalysisManager modules;
  PassBuilder builder(&machine, options);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);
  builder.buildPerModuleDefaultPipeline(OptimizationLevel::O2).run(module, modules);
}

/// Keeps instructions that are text, which whole warps may have to execute, out of branches.
static void keepTextTogether(Module &module) {
  for (Function &function : module)
    for (BasicBlock &block : function)
      for (Instruction &instruction : block)
        if (auto *call = dyn_cast<CallInst>(&instruction); call && call->isInlineAsm())
          call->setConvergent();
}

Expected<ObjectCode> PtxEmitter::emitKernel(mlir::ModuleOp module) {
  mlir::registerBuiltinDialectTranslation(*module->getContext());
  mlir::registerLLVMDialectTranslation(*module->getContext());
  mlir::registerNVVMDialectTranslation(*module->getContext());
  LLVMContext llvmContext;
  std::unique_ptr<Module> translated = mlir::translateModuleToLLVMIR(module, llvmContext);
  if (!translated)
    return createStringError("no translation to LLVM IR");
  translated->setTargetTriple(machine->getTargetTriple());
  translated->setDataLayout(machine->createDataLayout());
  if (Error error = linkLibdevice(*translated))
    return std::move(error);
  keepTextTogether(*translated);
  optimize(*translated, *machine);
  SmallString<0> text;
  raw_svector_ostream os(text);
  legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, os, nullptr, CodeGenFileType::AssemblyFile))
    return createStringError("no PTX for " + machine->getTargetCPU());
  passes.run(*translated);
  return text.str().str();
}

} // namespace meshwright::lower

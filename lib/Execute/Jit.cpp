//===- Jit.cpp - LLVM IR to code in this process --------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Jit.h"

#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>

using namespace llvm;

namespace meshwright {

bool hostConvertsBf16() {
  StringMap<bool> features = sys::getHostCPUFeatures();
  return features.lookup("avx512bf16") || features.lookup("avxneconvert");
}

CompiledCode::CompiledCode() = default;
CompiledCode::~CompiledCode() = default;

/// What compiled code may refer to.
static Error defineSymbols(orc::LLJIT &jit) {
  orc::SymbolMap symbols;
  auto define = [&](StringRef name, auto *function) {
    symbols[jit.mangleAndIntern(name)] = {orc::ExecutorAddr::fromPtr(function),
                                          JITSymbolFlags::Exported | JITSymbolFlags::Callable};
  };
  define("mw_rt_run_collective", &mw_rt_run_collective);
  define("mw_rt_run_gemm", &mw_rt_run_gemm);
  define("mw_rt_run_attention", &mw_rt_run_attention);
  define("mw_rt_run_gather", &mw_rt_run_gather);
  define("mw_rt_run_take_along", &mw_rt_run_take_along);
  define("mw_rt_run_mask", &mw_rt_run_mask);
  define("mw_rt_run_axis_index", &mw_rt_run_axis_index);
  define("mw_rt_run_probe", &mw_rt_run_probe);
  // By their addresses here: a library that was opened on its own need not have
  // the mathematics among the process's symbols.
  using Unary32 = float (*)(float);
  using Unary64 = double (*)(double);
  using Binary32 = float (*)(float, float);
  using Binary64 = double (*)(double, double);
  define("sinf", Unary32(&::sinf));
  define("cosf", Unary32(&::cosf));
  define("expf", Unary32(&::expf));
  define("logf", Unary32(&::logf));
  define("erff", Unary32(&::erff));
  define("tanhf", Unary32(&::tanhf));
  define("sqrtf", Unary32(&::sqrtf));
  define("floorf", Unary32(&::floorf));
  define("powf", Binary32(&::powf));
  define("fmodf", Binary32(&::fmodf));
  define("sin", Unary64(&::sin));
  define("cos", Unary64(&::cos));
  define("exp", Unary64(&::exp));
  define("log", Unary64(&::log));
  define("erf", Unary64(&::erf));
  define("tanh", Unary64(&::tanh));
  define("sqrt", Unary64(&::sqrt));
  define("floor", Unary64(&::floor));
  define("pow", Binary64(&::pow));
  define("fmod", Binary64(&::fmod));
  using Fill = void *(*)(void *, int, size_t);
  using Copy = void *(*)(void *, const void *, size_t);
  define("memset", Fill(&::memset));
  define("memcpy", Copy(&::memcpy));
  define("memmove", Copy(&::memmove));
  return jit.getMainJITDylib().define(orc::absoluteSymbols(std::move(symbols)));
}

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
  builder.buildPerModuleDefaultPipeline(OptimizationLevel::O2).run(module, modules);
}

Expected<std::unique_ptr<CompiledCode>> CompiledCode::compile(mlir::ModuleOp module,
                                                              StringRef entry) {
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    InitializeNativeTarget();
    InitializeNativeTargetAsmPrinter();
  });
  mlir::registerBuiltinDialectTranslation(*module->getContext());
  mlir::registerLLVMDialectTranslation(*module->getContext());
  auto context = std::make_unique<LLVMContext>();
  std::unique_ptr<Module> translated = mlir::translateModuleToLLVMIR(module, *context);
  if (!translated)
    return createStringError("the program does not translate to LLVM IR");

  auto builder = orc::JITTargetMachineBuilder::detectHost();
  if (!builder)
    return builder.takeError();
  builder->setCodeGenOptLevel(CodeGenOptLevel::Default);
  auto machine = builder->createTargetMachine();
  if (!machine)
    return machine.takeError();
  translated->setTargetTriple((*machine)->getTargetTriple());
  translated->setDataLayout((*machine)->createDataLayout());
  std::string features = builder->getFeatures().getString();
  for (Function &function : *translated)
    if (!function.isDeclaration()) {
      function.addFnAttr("target-cpu", builder->getCPU());
      function.addFnAttr("target-features", features);
    }
  optimize(*translated, **machine);

  auto jit = orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(*builder)).create();
  if (!jit)
    return jit.takeError();
  if (Error error = defineSymbols(**jit))
    return std::move(error);
  // Whatever else the code generator calls (conversions of small floats, say).
  auto process = orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
      (*jit)->getDataLayout().getGlobalPrefix());
  if (!process)
    return process.takeError();
  (*jit)->getMainJITDylib().addGenerator(std::move(*process));
  if (Error error =
          (*jit)->addIRModule(orc::ThreadSafeModule(std::move(translated), std::move(context))))
    return std::move(error);
  auto address = (*jit)->lookup(entry);
  if (!address)
    return address.takeError();
  std::unique_ptr<CompiledCode> code(new CompiledCode());
  code->entry = address->toPtr<mw_rt_entry>();
  code->jit = std::move(*jit);
  return code;
}

} // namespace meshwright

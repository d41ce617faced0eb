//===- KernelRunner.cpp - one kernel, compiled and called -----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelRunner.h"

#include "meshwright/lib/Codegen/Cpu/LowerKernels.h"
#include "meshwright/lib/Driver/Execute/KernelCompiler.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ExecutionEngine/Orc/ExecutionUtils.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"

#include <ctime>

using namespace llvm;

namespace meshwright::test {

Kernel::Kernel() = default;
Kernel::~Kernel() = default;

std::unique_ptr<mlir::MLIRContext> makeContext() {
  auto context = std::make_unique<mlir::MLIRContext>(mlir::MLIRContext::Threading::DISABLED);
  lower::loadKernelDialects(*context);
  return context;
}

std::unique_ptr<Kernel>
Kernel::build(ArrayRef<mlir::Type> types, const Processor &target,
              function_ref<void(mlir::ImplicitLocOpBuilder &, mlir::ValueRange)> emit) {
  mlir::MLIRContext *context = types.front().getContext();
  auto loc = mlir::UnknownLoc::get(context);
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(loc);
  auto builder = mlir::ImplicitLocOpBuilder::atBlockEnd(loc, module->getBody());
  auto kernel = mlir::func::FuncOp::create(builder, "kernel", builder.getFunctionType(types, {}));
  for (auto [i, type] : enumerate(types))
    if (isa<mlir::MemRefType>(type))
      kernel.setArgAttr(i, "llvm.noalias", builder.getUnitAttr());
  builder.setInsertionPointToEnd(kernel.addEntryBlock());
  emit(builder, kernel.getArguments());
  mlir::func::ReturnOp::create(builder);
  if (failed(module->verify()))
    report_fatal_error("the kernel's IR is invalid");
  KernelSource source{"kernel", /*purpose=*/"", /*text=*/""};
  raw_string_ostream(source.text) << *module;
  return compile(source, target);
}

/// The time of this thread, so that what else the machine does counts less.
static double seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

std::unique_ptr<Kernel> Kernel::compile(const KernelSource &source, const Processor &target) {
  ExitOnError exitOnError("kernel: ");
  lower::CpuTarget cpu("cpu:" + target.cpu, target);
  auto compiler = exitOnError(KernelCompiler::create(cpu));
  double start = seconds();
  ObjectCode object = exitOnError(compiler->compile(source));
  std::unique_ptr<Kernel> result(new Kernel());
  result->compileMilliseconds = (seconds() - start) * 1e3;
  if (const char *path = getenv("MESHWRIGHT_DUMP_KERNEL")) {
    std::error_code error;
    raw_fd_ostream(path, error) << object;
  }
  result->jit = cantFail(orc::LLJITBuilder().create());
  auto process = cantFail(orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
      result->jit->getDataLayout().getGlobalPrefix()));
  result->jit->getMainJITDylib().addGenerator(std::move(process));
  cantFail(result->jit->addObjectFile(MemoryBuffer::getMemBufferCopy(object)));
  result->kernel = cantFail(result->jit->lookup(source.name)).toPtr<mw_rt_kernel>();
  return result;
}

} // namespace meshwright::test

//===- KernelCompiler.cpp - kernels to code -------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelCompiler.h"

#include "mlir/Parser/Parser.h"

using namespace llvm;

namespace meshwright {

KernelCompiler::KernelCompiler(const KernelTarget &target, std::unique_ptr<CodeEmitter> emitter)
    : target(target), emitter(std::move(emitter)),
      context(mlir::MLIRContext::Threading::DISABLED) {
  target.loadDialects(context);
}

KernelCompiler::~KernelCompiler() = default;

Expected<std::unique_ptr<KernelCompiler>> KernelCompiler::create(const KernelTarget &target) {
  Expected<std::unique_ptr<CodeEmitter>> emitter = target.createEmitter();
  if (!emitter)
    return emitter.takeError();
  return std::unique_ptr<KernelCompiler>(new KernelCompiler(target, std::move(*emitter)));
}

Expected<ObjectCode> KernelCompiler::compile(const KernelSource &kernel) {
  std::string diagnostics;
  mlir::ScopedDiagnosticHandler handler(
      &context, [&](mlir::Diagnostic &diagnostic) { diagnostics += ": " + diagnostic.str(); });
  auto fail = [&](StringRef problem) {
    return createStringError("kernel '" + kernel.name + "' " + problem.str() + diagnostics);
  };
  auto module = mlir::parseSourceString<mlir::ModuleOp>(
      kernel.text, mlir::ParserConfig(&context, /*verifyAfterParse=*/false));
  if (!module)
    return fail("cannot be read");
  if (failed(target.lowerKernel(*module)))
    return fail("cannot be lowered");
  Expected<ObjectCode> object = emitter->emitKernel(*module);
  if (!object)
    return fail("cannot be compiled: " + toString(object.takeError()));
  return object;
}

} // namespace meshwright

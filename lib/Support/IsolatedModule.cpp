//===- IsolatedModule.cpp - a copy in a context of its own ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/IsolatedModule.h"

#include "mlir/Bytecode/BytecodeWriter.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace meshwright;

IsolatedContext::IsolatedContext(MLIRContext *original) {
  DialectRegistry registry;
  original->getDialectRegistry().appendTo(registry);
  context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  // Only the message of an error is kept. Printing its op numbers the values of the whole function.
  context->printOpOnDiagnostic(false);
  handler = std::make_unique<ScopedDiagnosticHandler>(context.get(), [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && error.empty())
      error = diagnostic.str();
  });
}

OwningOpRef<ModuleOp> IsolatedContext::copy(ModuleOp other) {
  if (other.getContext() == context.get())
    return other.clone();
  std::string bytecode;
  llvm::raw_string_ostream os(bytecode);
  if (failed(writeBytecodeToFile(other, os)))
    return nullptr;
  // The original has been verified, and passes on a copy are verified where they run for good.
  ParserConfig config(context.get(), /*verifyAfterParse=*/false);
  return parseSourceString<ModuleOp>(bytecode, config, "<module>");
}

LogicalResult IsolatedContext::run(ModuleOp module, llvm::function_ref<void(OpPassManager &)> build) {
  if (!module)
    return failure();
  PassManager manager(context.get());
  manager.enableVerifier(false);
  build(manager);
  return manager.run(module);
}

IsolatedModule::IsolatedModule(ModuleOp original)
    : own(std::make_unique<IsolatedContext>(original.getContext())), context(*own), module(context.copy(original)) {}

IsolatedModule::IsolatedModule(ModuleOp original, IsolatedContext &context) : context(context) {
  // An error of an earlier copy.
  context.takeError();
  module = context.copy(original);
}

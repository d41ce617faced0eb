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

IsolatedModule::IsolatedModule(ModuleOp original) {
  DialectRegistry registry;
  original->getContext()->getDialectRegistry().appendTo(registry);
  context = std::make_unique<MLIRContext>(registry, MLIRContext::Threading::DISABLED);
  // Only the message of an error is kept. Printing its op numbers the values of the whole function.
  context->printOpOnDiagnostic(false);
  handler = std::make_unique<ScopedDiagnosticHandler>(context.get(), [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && error.empty())
      error = diagnostic.str();
  });
  module = copy(original);
}

OwningOpRef<ModuleOp> IsolatedModule::copy(ModuleOp other) {
  std::string bytecode;
  llvm::raw_string_ostream os(bytecode);
  if (failed(writeBytecodeToFile(other, os)))
    return nullptr;
  // The original has been verified, and passes on a copy are verified where they run for good.
  ParserConfig config(context.get(), /*verifyAfterParse=*/false);
  return parseSourceString<ModuleOp>(bytecode, config, "<module>");
}

LogicalResult IsolatedModule::run(ModuleOp clone,
                                  llvm::function_ref<void(OpPassManager &)> build) {
  if (!clone)
    return failure();
  PassManager manager(context.get());
  manager.enableVerifier(false);
  build(manager);
  return manager.run(clone);
}

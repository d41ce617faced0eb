//===- main.cpp - parses a module and runs passes on it by name -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Register/Register.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

#include "llvm/Support/raw_ostream.h"

using namespace mlir;

// usage: consumer FILE PIPELINE; prints the module, and on standard error how
// many operations are of our dialect, by its C++ classes.
int main(int argc, char **argv) {
  if (argc != 3) {
    llvm::errs() << "usage: consumer FILE PIPELINE\n";
    return 2;
  }
  DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  meshwright::registerAllPasses();
  registerTransformsPasses();

  MLIRContext context(registry);
  OwningOpRef<ModuleOp> module = parseSourceFile<ModuleOp>(argv[1], &context);
  if (!module)
    return 1;
  PassManager manager(&context);
  if (failed(parsePassPipeline(argv[2], manager)) || failed(manager.run(*module)))
    return 1;

  unsigned ours = 0;
  module->walk([&](Operation *op) {
    if (isa_and_nonnull<meshwright::nn::NnDialect>(op->getDialect()))
      ++ours;
  });
  module->print(llvm::outs());
  llvm::errs() << ours << " nn ops\n";
  return 0;
}

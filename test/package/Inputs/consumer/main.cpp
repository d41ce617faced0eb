//===- main.cpp - parses a module and runs passes on it by name -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/lib/Driver/Register/Register.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
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
// many operations are of our dialects, by their C++ classes.
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

  unsigned ours[2] = {0, 0};
  for (auto function : module->getOps<mlir::func::FuncOp>())
    function.walk([&](Operation *op) {
      ours[0] += isa_and_nonnull<meshwright::nn::NnDialect>(op->getDialect());
      ours[1] += isa_and_nonnull<meshwright::dist::DistDialect>(op->getDialect());
    });
  module->print(llvm::outs());
  llvm::errs() << ours[0] << " nn ops, " << ours[1] << " dist ops in functions\n";
  return 0;
}

//===- main.cpp - meshwright-reduce ---------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's reducer with our dialects and passes: it makes a program smaller as long as a script finds it
// interesting, for example because a pass fails. It erases functions and ops that no other op uses, and
// tries passes that the user names (--opt-reduction-pass).
//
//===----------------------------------------------------------------------===//

#include "Version.h"

#include "meshwright/lib/Driver/Register/Register.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Tools/mlir-reduce/MlirReduceMain.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

int main(int argc, char **argv) {
  llvm::cl::SetVersionPrinter([](llvm::raw_ostream &os) {
    os << "meshwright-reduce" << meshwright::kVersionText;
  });
  meshwright::registerAllPasses();
  mlir::registerTransformsPasses();
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  mlir::MLIRContext context(registry);
  return failed(mlir::mlirReduceMain(argc, argv, context));
}

//===- main.cpp - meshwright-lsp-server -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// MLIR's language server for editors, with our dialects.
//
//===----------------------------------------------------------------------===//

#include "Version.h"

#include "meshwright/lib/Driver/Register/Register.h"

#include "mlir/IR/DialectRegistry.h"
#include "mlir/Tools/mlir-lsp-server/MlirLspServerMain.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

int main(int argc, char **argv) {
  llvm::cl::SetVersionPrinter([](llvm::raw_ostream &os) {
    os << "meshwright-lsp-server" << meshwright::kVersionText;
  });
  mlir::DialectRegistry registry;
  meshwright::registerAllDialects(registry);
  return failed(mlir::MlirLspServerMain(argc, argv, registry));
}

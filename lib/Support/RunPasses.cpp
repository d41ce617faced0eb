//===- RunPasses.cpp - passes, and one verification behind them -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/RunPasses.h"

#include "mlir/IR/Verifier.h"

using namespace mlir;

LogicalResult meshwright::runPasses(ModuleOp module,
                                    llvm::function_ref<void(OpPassManager &)> build) {
  PassManager manager(module.getContext());
  manager.enableVerifier(false);
  build(manager);
  if (failed(manager.run(module)))
    return failure();
  return verify(module);
}

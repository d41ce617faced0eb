//===- Pipeline.cpp - the bind phase --------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/bind/Pipeline.h"

#include "meshwright/passes/bind/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildBindPipeline(OpPassManager &pm) {
  pm.addPass(createBindStatePass());
  pm.addPass(createBindSizesPass());
}

void meshwright::buildTiePipeline(OpPassManager &pm, bool keepFirst) {
  pm.addPass(createTieEntriesPass({keepFirst}));
}

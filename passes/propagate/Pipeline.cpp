//===- Pipeline.cpp - the propagate phase ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/propagate/Pipeline.h"

#include "meshwright/passes/propagate/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildPropagatePipeline(OpPassManager &pm) {
  pm.addPass(createPropagateShardingsPass());
}

//===- Pipeline.cpp - the differentiate phase -----------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/differentiate/Pipeline.h"

#include "meshwright/passes/differentiate/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildDifferentiatePipeline(OpPassManager &pm) {
  pm.addPass(createDifferentiateGradientsPass());
}

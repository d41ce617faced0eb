//===- Pipeline.cpp - the partition phase ---------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/Pipeline.h"

#include "meshwright/passes/partition/Passes.h"

using namespace mlir;
using namespace meshwright;

void meshwright::buildPartitionPipeline(OpPassManager &pm) {
  pm.addPass(createExpandReductionsPass());
  pm.addPass(createSumShardedSlicesPass());
  pm.addPass(createKeepSumsOpenPass());
  pm.addPass(createPartitionPass());
}

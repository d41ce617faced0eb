//===- Models.cpp - how ops become local ----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/partition/Models.h"

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::local_models;

#include "meshwright/passes/partition/PartitionInterfaces.cpp.inc"

void meshwright::registerPartitionModels(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, nn::NnDialect *) {
    attachBlockModels(context);
    attachMovementModels(context);
    attachPartsModels(context);
    attachRingAttentionModels(context);
    attachSelectionModels(context);
    attachTableModels(context);
  });
  registry.addExtension(+[](MLIRContext *context, dist::DistDialect *) {
    attachCountedRowModels(context);
    attachStorageModels(context);
  });
}

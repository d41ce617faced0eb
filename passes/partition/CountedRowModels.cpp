//===- CountedRowModels.cpp - true rows of groups, on the ranks -----------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/passes/partition/Models.h"

using namespace mlir;
using namespace meshwright;

namespace {

/// Parts of a sum go to their places, so that ranks sum the rows that each keeps.
struct ExpandModel : LocalOpInterface::ExternalModel<ExpandModel, dist::ExpandOp> {
  bool passesPart(Operation *, unsigned operand) const { return operand == 0; }
  bool passesAtOnce(Operation *) const { return true; }
};

} // namespace

void local_models::attachCountedRowModels(MLIRContext *context) {
  dist::ExpandOp::attachInterface<ExpandModel>(*context);
}

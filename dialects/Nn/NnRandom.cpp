//===- NnRandom.cpp - the op nn.random ------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnRandom.h"

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnRandomOps.cpp.inc"

/// Checks that
///  - the index broadcasts to the result;
///  - seed and step are scalars.
LogicalResult RandomOp::verify() {
  if (failed(verifyStretchesTo(*this, "index", getIndex(), shapeOf(getResult()))) ||
      failed(verifyShape(*this, "seed", getSeed(), {})))
    return failure();
  return verifyShape(*this, "step", getStep(), {});
}

Padding RandomOp::getResultPadding(const Operands &) { return {0, 1}; }

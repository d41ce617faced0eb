//===- NnDerivatives.cpp - derivatives that a program states --------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/dialects/Nn/NnDerivatives.h"

#include "meshwright/dialects/Nn/Checks.h"
#include "meshwright/dialects/Nn/NnPaddingDetail.h"

using namespace mlir;
using namespace meshwright;
using namespace meshwright::nn;
using namespace meshwright::padding;

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnDerivativeOps.cpp.inc"

Padding WithDerivativeOp::getResultPadding(const Operands &in) { return in.getConditional(0); }

LogicalResult WithDerivativeOp::verify() { return verifyBinary(*this); }

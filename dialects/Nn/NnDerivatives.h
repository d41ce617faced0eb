//===- NnDerivatives.h - derivatives that a program states ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ops that `differentiate` reads and erases. Other passes know them by their traits and
// interfaces alone.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNDERIVATIVES_H
#define MESHWRIGHT_DIALECTS_NN_NNDERIVATIVES_H

#include "meshwright/dialects/Nn/Nn.h"

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnDerivativeOps.h.inc"

#endif // MESHWRIGHT_DIALECTS_NN_NNDERIVATIVES_H

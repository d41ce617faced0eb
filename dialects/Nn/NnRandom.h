//===- NnRandom.h - random numbers of the nn dialect ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_NN_NNRANDOM_H
#define MESHWRIGHT_DIALECTS_NN_NNRANDOM_H

#include "meshwright/dialects/Nn/Nn.h"

#define GET_OP_CLASSES
#include "meshwright/dialects/Nn/NnRandomOps.h.inc"

#endif // MESHWRIGHT_DIALECTS_NN_NNRANDOM_H

//===- Registry.cpp - The decoders of ops/ -----------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ops/Registry.h"

namespace fakegpu {

const DecodeTable &decodeTable() {
  static const DecodeTable table = [] {
    DecodeTable t;
    addIntegerOps(t);
    addBitOps(t);
    addFloatOps(t);
    addConvertOps(t);
    addControlOps(t);
    addMemoryOps(t);
    addAtomicOps(t);
    addWarpOps(t);
    addMatrixOps(t);
    addCopyOps(t);
    addMbarrierOps(t);
    addWgmmaOps(t);
    return t;
  }();
  return table;
}

} // namespace fakegpu

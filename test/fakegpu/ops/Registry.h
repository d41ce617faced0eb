//===- Registry.h - The decoders of ops/ -------------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_OPS_REGISTRY_H
#define FAKEGPU_OPS_REGISTRY_H

#include "interp/Decoder.h"

namespace fakegpu {

void addIntegerOps(DecodeTable &table);
void addBitOps(DecodeTable &table);
void addFloatOps(DecodeTable &table);
void addConvertOps(DecodeTable &table);
void addControlOps(DecodeTable &table);
void addMemoryOps(DecodeTable &table);
void addAtomicOps(DecodeTable &table);
void addWarpOps(DecodeTable &table);
void addMatrixOps(DecodeTable &table);
void addCopyOps(DecodeTable &table);
void addMbarrierOps(DecodeTable &table);
void addWgmmaOps(DecodeTable &table);

/// Float decoders of opcodes that integers share.
void decodeFloatArithmetic(Decoder &d, Type type);
void decodeFloatMinMax(Decoder &d, Type type);
void decodeFloatCompare(Decoder &d, Type type);

/// Results, sources and the combined predicate of setp.
void decodeCompareOperands(Decoder &d, Type type);
void storeComparison(Warp &w, const Inst &i, uint32_t mask, uint32_t result);

} // namespace fakegpu

#endif

//===- MemoryAccess.h - Where the bytes of an address are --------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_OPS_MEMORYACCESS_H
#define FAKEGPU_OPS_MEMORYACCESS_H

#include "interp/Warp.h"

namespace fakegpu {

enum class Access { Read, ReadNonCoherent, Write, Atomic };

/// The address of each lane of a memory operand: base register plus offset.
inline void laneAddresses(Warp &w, const Inst &i, uint64_t (&addresses)[kLanes]) {
  if (i.wideBase) {
    const auto *base = w.at<uint64_t>(i.a);
    for (unsigned l = 0; l < kLanes; ++l)
      addresses[l] = base[l] + uint64_t(i.imm);
  } else {
    const auto *base = w.at<uint32_t>(i.a);
    for (unsigned l = 0; l < kLanes; ++l)
      addresses[l] = uint32_t(base[l] + uint32_t(i.imm));
  }
}

/// Fills in where each lane's bytes are; checks bounds, alignment and races, and counts.
void hostPointers(Warp &w, const Inst &i, uint32_t mask, unsigned bytes, Access access,
                  char *(&pointers)[kLanes]);

/// The bytes at an address of shared memory (in the window of the block, or of the cluster).
char *sharedPointer(Warp &w, const Inst &i, unsigned lane, uint64_t address, unsigned bytes,
                    Access access);
char *globalPointer(Warp &w, const Inst &i, unsigned lane, uint64_t address, unsigned bytes,
                    Access access);

} // namespace fakegpu

#endif

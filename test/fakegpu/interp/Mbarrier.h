//===- Mbarrier.h - Barriers that are objects in shared memory ---------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef FAKEGPU_INTERP_MBARRIER_H
#define FAKEGPU_INTERP_MBARRIER_H

#include "interp/Warp.h"

namespace fakegpu {

/// The 64 bits of an mbarrier. The layout is the stand-in's own.
struct Mbarrier {
  uint32_t pending = 0, expected = 0; // arrivals
  int32_t bytes = 0;                  // that copies have yet to bring
  bool phase = false, valid = false;

  static Mbarrier load(const char *at);
  void store(char *at) const;
  /// Ends the phase if nothing is left to come.
  void settle();
};

/// Returns true if the phase that a warp waits for has ended.
bool mbarrierDone(Cluster &cluster, Warp &warp);

/// Bytes of a copy have arrived. `address` is in the window of the cluster.
void mbarrierCompleteBytes(Warp &warp, uint64_t address, uint32_t bytes);

} // namespace fakegpu

#endif

//===- Packing.h - weights in the form that kernels read --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Types.h"

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// Returns true if a weight of this type can be cast to the others for which this is true.
bool isCastable(DType type);
/// The bytes of a prepared weight, padding included.
int64_t sizeOfPacked(const mw_rt_packing &what);
/// The number of panels. Each can be packed by itself. A weight that is not packed has one.
int64_t packedPanels(const mw_rt_packing &what);

/// Casts and packs the panels [first, last) of a dense matrix into `to`, which has room for all
/// panels. Several threads may pack different panels at once.
void packPanels(const mw_rt_packing &what, const void *from, void *to, int64_t first, int64_t last);
/// Matrices that are packed together, which threads share.
class PackingQueue {
public:
  /// Both must stay until `run`.
  void add(const mw_rt_packing &what, const void *from, void *to);
  /// The bytes that wait, packed.
  int64_t getBytes() const { return bytes; }
  /// Packs all, by up to `threads` threads, and forgets them.
  void run(int threads);

private:
  struct Job {
    mw_rt_packing what;
    const void *from;
    void *to;
  };
  void runPart(int64_t begin, int64_t end) const;

  std::vector<Job> jobs;
  int64_t bytes = 0;
};

/// Packs all panels. Large matrices are packed by up to `threads` threads.
void pack(const mw_rt_packing &what, const void *from, void *to, int threads = 1);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H

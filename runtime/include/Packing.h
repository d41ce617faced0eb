//===- Packing.h - weights in the form that kernels read --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H
#define MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H

#include "meshwright-c/Runtime.h"
#include "meshwright/runtime/include/Program.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::rt {

/// Returns true if a weight of this type can be cast to the others for which this is true.
bool isCastable(DType type);
/// The matrices of a weight.
inline int64_t countMatrices(const mw_rt_packing &what) { return std::max<int64_t>(what.batch, 1); }
/// The bytes of a prepared weight, padding included.
int64_t sizeOfPacked(const mw_rt_packing &what);
/// The number of panels. Each can be packed by itself. A weight that is not packed has one.
int64_t packedPanels(const mw_rt_packing &what);

/// Casts and packs the panels [first, last) of a dense matrix into `to`, which has room for all
/// panels. Several threads may pack different panels at once. A panel of a weight in a form is a
/// group of its rows; `largest` is the largest magnitude of the whole weight then. All elements are
/// finite.
void packPanels(const mw_rt_packing &what, const void *from, void *to, int64_t first, int64_t last,
                float largest = 0);
/// Matrices that are packed together, which threads share.
class PackingQueue {
public:
  /// Both must stay until `run`.
  void add(const mw_rt_packing &what, const void *from, void *to, float largest = 0);
  /// The bytes that wait, packed.
  int64_t getBytes() const { return bytes; }
  /// Packs all, by up to `threads` threads, and forgets them.
  void run(int threads);

private:
  struct Job {
    mw_rt_packing what;
    const void *from;
    void *to;
    float largest;
  };
  void runPart(int64_t begin, int64_t end) const;

  std::vector<Job> jobs;
  int64_t bytes = 0;
};

/// Packs all panels. Large matrices are packed by up to `threads` threads.
void pack(const mw_rt_packing &what, const void *from, void *to, int threads = 1,
          float largest = 0);

/// Finds the largest magnitude of a whole weight that is brought to a form; 0 for other packings.
/// Returns an error, without the name of the weight, if an element is not finite; else "".
std::string measureWeight(const mw_rt_packing &what, const HostTensor &weight, float &largest);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_PACKING_H

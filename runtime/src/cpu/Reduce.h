//===- Reduce.h - combining partial values ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_REDUCE_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_REDUCE_H

#include "meshwright/runtime/include/Types.h"
#include "meshwright/runtime/src/tensors/Moves.h"

#include <vector>

namespace meshwright::rt {

/// Combines `count` elements of all sources, in the order of the sources, and writes them to each
/// result. A result may be the same memory as a source. bf16 and f16 are added in f32 and rounded
/// once.
void reduce(DType type, int64_t kind, const std::vector<const void *> &sources,
            const std::vector<void *> &results, int64_t count);

/// A member's summand in a reduce-scatter: its whole input, or a dense copy of the receiver's box.
struct ChunkSource {
  const void *data;
  bool isBox;
};

/// Performs a rank's part of a reduce-scatter: combines the members' boxes, in the order of the
/// sources, into the rank's output. Elements in no box become zeros.
void reduceChunk(const mw_rt_collective &what, int64_t tensor, const Arrivals &arrivals,
                 const std::vector<ChunkSource> &sources, void *result);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_REDUCE_H

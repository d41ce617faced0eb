//===- Reduce.h - combining partial values ----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_REDUCE_H
#define MESHWRIGHT_RUNTIME_SRC_REDUCE_H

#include "meshwright/runtime/include/Types.h"

#include <vector>

namespace meshwright::rt {

/// Combines `count` elements of every source, in the order of the sources.
/// bf16 and f16 are added in f32 and rounded once.
void reduce(DType type, int64_t kind, const std::vector<const void *> &sources, void *result,
            int64_t count);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_REDUCE_H

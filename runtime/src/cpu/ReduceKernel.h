//===- ReduceKernel.h - combining partial values, in vectors ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiled once for each instruction set, without functions of the standard library: the linker
// keeps one copy of an inline function, and a copy compiled for another instruction set may not run
// on this processor.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_REDUCEKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_REDUCEKERNEL_H

#include "meshwright-c/Runtime.h"

namespace meshwright::rt {

using ReduceKernel = void (*)(int64_t dtype, int64_t kind, const void *const *sources,
                              int64_t numSources, void *const *results, int64_t numResults,
                              int64_t count);

void reduceBaseline(int64_t dtype, int64_t kind, const void *const *sources, int64_t numSources,
                    void *const *results, int64_t numResults, int64_t count);
void reduceAvx2(int64_t dtype, int64_t kind, const void *const *sources, int64_t numSources,
                void *const *results, int64_t numResults, int64_t count);
void reduceAvx512(int64_t dtype, int64_t kind, const void *const *sources, int64_t numSources,
                  void *const *results, int64_t numResults, int64_t count);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_REDUCEKERNEL_H

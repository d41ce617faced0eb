//===- PeakKernel.h - as many products and sums as can be -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H

#include <cstdint>

namespace meshwright::rt {

/// Multiplies and adds in registers for that many rounds; returns how many
/// floating-point operations that were.
using PeakKernel = double (*)(int64_t rounds, float *sink);

double peakBaseline(int64_t rounds, float *sink);
double peakAvx2(int64_t rounds, float *sink);
double peakAvx512(int64_t rounds, float *sink);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H

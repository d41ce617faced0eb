//===- PeakKernel.h - the peak rate of arithmetic ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H

#include <cstdint>

namespace meshwright::rt {

/// Multiplies and adds in registers for that many rounds. Returns the number of floating-point
/// operations.
using PeakKernel = double (*)(int64_t rounds, float *sink);

double peakBaseline(int64_t rounds, float *sink);
double peakAvx2(int64_t rounds, float *sink);
double peakAvx512(int64_t rounds, float *sink);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_PEAKKERNEL_H

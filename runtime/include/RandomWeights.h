//===- RandomWeights.h - weights for programs that have none ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_RANDOMWEIGHTS_H
#define MESHWRIGHT_RUNTIME_INCLUDE_RANDOMWEIGHTS_H

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Program.h"

namespace meshwright::rt {

/// Draws a tensor of weights. The values depend on the seed, the tensor's name and the index of an
/// element only, so they are the same in every process and for every mesh:
///  - floats with two or more dimensions are uniform around 0, with the variance
///    1 / (size of the last dimension), so that a product keeps the scale of its input;
///  - other floats are uniform in [0.5, 1.5): a norm's weight, a divisor or a variance
///    stays away from 0;
///  - integers are below the tensor's index bound (below 2 where it is 0);
///  - three of four booleans are true, because most booleans are masks.
/// Large tensors are drawn by all processors. Returns null if there is not enough memory.
Memory drawWeight(const WeightTensor &tensor, uint64_t seed);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_RANDOMWEIGHTS_H

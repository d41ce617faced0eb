//===- RandomWeights.h - weights for programs that have none ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACADE_RANDOMWEIGHTS_H
#define MESHWRIGHT_LIB_FACADE_RANDOMWEIGHTS_H

#include "meshwright/runtime/include/Memory.h"
#include "meshwright/runtime/include/Types.h"

#include <string_view>
#include <vector>

namespace meshwright {

/// Draws one parameter. The values depend on the seed, the parameter's name and the
/// index of an entry only, so they are the same in every process and for every mesh:
///  - floats with two or more dimensions are uniform around 0, with the variance
///    1 / (size of the last dimension), so that a product keeps the scale of its input;
///  - other floats are uniform in [0.5, 1.5): a norm's weight, a divisor or a variance
///    stays away from 0;
///  - integers are below `indexBound` (below 2 where it is 0);
///  - three of four booleans are true, because most booleans are masks.
/// Returns null if there is not enough memory.
rt::Memory drawWeight(std::string_view name, rt::DType type, const std::vector<int64_t> &shape,
                      int64_t indexBound, uint64_t seed);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACADE_RANDOMWEIGHTS_H

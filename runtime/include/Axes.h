//===- Axes.h - groups of ranks along the axes of a mesh --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_INCLUDE_AXES_H
#define MESHWRIGHT_RUNTIME_INCLUDE_AXES_H

#include "meshwright-c/Runtime.h"

#include <cstdint>
#include <vector>

namespace meshwright::rt {

/// The product of the axes' sizes.
int64_t sizeOfGroup(const mw_rt_axes &axes);
/// The rank's linear coordinate over the axes.
int64_t coordinateOf(const mw_rt_axes &axes, int64_t rank);
/// The ranks of the rank's group, by linear coordinate over the axes. `self` is set to the
/// coordinate of `rank`.
std::vector<int64_t> groupOf(const mw_rt_axes &axes, int64_t rank, int64_t &self);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_INCLUDE_AXES_H

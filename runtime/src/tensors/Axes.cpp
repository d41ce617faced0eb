//===- Axes.cpp - groups of ranks along the axes of a mesh ----------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/runtime/include/Axes.h"

namespace meshwright::rt {

int64_t sizeOfGroup(const mw_rt_axes &axes) {
  int64_t size = 1;
  for (int64_t i = 0; i < axes.count; ++i)
    size *= axes.axes[i].size;
  return size;
}

int64_t coordinateOf(const mw_rt_axes &axes, int64_t rank) {
  int64_t coordinate = 0;
  for (int64_t i = 0; i < axes.count; ++i)
    coordinate = coordinate * axes.axes[i].size + rank / axes.axes[i].stride % axes.axes[i].size;
  return coordinate;
}

std::vector<int64_t> groupOf(const mw_rt_axes &axes, int64_t rank, int64_t &self) {
  self = coordinateOf(axes, rank);
  int64_t base = rank;
  for (int64_t i = 0; i < axes.count; ++i)
    base -= rank / axes.axes[i].stride % axes.axes[i].size * axes.axes[i].stride;
  std::vector<int64_t> ranks{base};
  for (int64_t i = 0; i < axes.count; ++i) {
    std::vector<int64_t> finer;
    for (int64_t major : ranks)
      for (int64_t c = 0; c < axes.axes[i].size; ++c)
        finer.push_back(major + c * axes.axes[i].stride);
    ranks = std::move(finer);
  }
  return ranks;
}

} // namespace meshwright::rt

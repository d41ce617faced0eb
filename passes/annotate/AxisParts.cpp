//===- AxisParts.cpp - several axes as one --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/AxisParts.h"

#include <numeric>

using namespace mlir;
using namespace meshwright::dist;

std::optional<AxisList> meshwright::getPart(ArrayRef<Axis> axes, int64_t pre, int64_t size) {
  AxisList part;
  for (Axis axis : axes) {
    int64_t skipped = std::gcd(pre, axis.size);
    if (skipped != std::min(pre, axis.size))
      return std::nullopt;
    pre /= skipped;
    axis.pre *= skipped;
    axis.size /= skipped;
    int64_t taken = std::gcd(size, axis.size);
    if (taken != std::min(size, axis.size))
      return std::nullopt;
    size /= taken;
    if (taken > 1)
      part.push_back({axis.axis, axis.pre, taken});
  }
  return part;
}

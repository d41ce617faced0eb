//===- AxisParts.cpp - several axes as one --------------------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/passes/annotate/AxisParts.h"

#include "llvm/Support/MathExtras.h"

#include <numeric>
#include <tuple>

using namespace mlir;
using namespace meshwright;
using namespace meshwright::dist;

std::optional<AxisList> meshwright::getAxisPart(ArrayRef<Axis> axes, int64_t pre, int64_t size) {
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

HeadSplit meshwright::splitHeads(int64_t keyHeads, int64_t group, int64_t ranks, int64_t ring) {
  std::optional<HeadSplit> best;
  for (int64_t keyShards = ranks; keyShards > 0; --keyShards) {
    if (ranks % keyShards != 0)
      continue;
    int64_t own = llvm::divideCeil(keyHeads, keyShards);
    HeadSplit split{keyShards, own, own * int64_t(llvm::divideCeil(group, ranks / keyShards))};
    // A rank receives its heads from all ranks of the group, and sends results back the
    // same way. Keys and values then travel around the ring.
    auto key = [&](const HeadSplit &s) {
      int64_t sent = s.heads * (ranks - 1) + s.keyHeads * (ranks - 1 + (ring - 1) * ranks);
      return std::tuple(sent, s.heads, s.keyShards * s.keyHeads);
    };
    if (!best || key(split) < key(*best))
      best = split;
  }
  return *best;
}

//===- SplitRegionGrowth.h - all that rows reach ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_SPLITREGIONGROWTH_H
#define MESHWRIGHT_PASSES_SCHEDULE_SPLITREGIONGROWTH_H

#include "meshwright/passes/schedule/SplitRegion.h"

#include "meshwright/lib/Support/ProgramMap.h"

namespace meshwright {

/// The values and ops that the rows reach.
struct SplitRegionFinder::Growth {
  ProgramMap<mlir::Value, TokenDim> tokens;
  ProgramMap<mlir::Operation *, ChunkOp> ops;
  /// Excluded ops: moves of several values, some of which have no such rows.
  ProgramMap<mlir::Operation *, ChunkOp> excluded;
  /// Why an op was not taken in.
  std::string reason;

  bool agrees(mlir::Value value, const TokenDim &token) const {
    auto it = tokens.find(value);
    return it == tokens.end() || it->second == token;
  }
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_SPLITREGIONGROWTH_H

//===- ChunkRewriter.h - regions written in chunks --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_CHUNKREWRITER_H
#define MESHWRIGHT_PASSES_SCHEDULE_CHUNKREWRITER_H

#include "meshwright/passes/schedule/SplitRegion.h"

namespace meshwright {

/// Writes a block anew with regions in the chunks into which they were cut. Values that ops outside
/// of a region read are joined behind it.
void writeInChunks(mlir::Block &block, llvm::ArrayRef<SplitRegion> regions);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_CHUNKREWRITER_H

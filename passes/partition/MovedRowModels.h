//===- MovedRowModels.h - rows that go to their experts ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_PARTITION_MOVEDROWMODELS_H
#define MESHWRIGHT_PASSES_PARTITION_MOVEDROWMODELS_H

#include "meshwright/passes/partition/Partitioner.h"

namespace meshwright {

/// Writes a dispatch whose rows are made at their tokens and move to their experts. Returns false where
/// each rank makes the rows of its own experts.
mlir::FailureOr<bool> sendRows(mlir::Operation *dispatch, Partitioner &partitioner);

/// Writes a sum over experts of rows that return to their tokens, or that are parts of a sum, as those of a
/// row-parallel product are: the sum over experts shares the reduction. Returns false for other rows.
mlir::FailureOr<bool> combineRows(mlir::Operation *combine, Partitioner &partitioner);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_PARTITION_MOVEDROWMODELS_H

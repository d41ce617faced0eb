//===- Selections.h - transposes of reads of one element --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_DIFFERENTIATE_SELECTIONS_H
#define MESHWRIGHT_PASSES_DIFFERENTIATE_SELECTIONS_H

#include "meshwright/dialects/Nn/Writer.h"

namespace meshwright::nn {

/// The cotangent of a value of which one element along `dim`, of `size` elements, is read:
/// `cotangent`, of size 1 along `dim`, at `position`, and zeros elsewhere. Positions are integers
/// and broadcast against the cotangent. Shards over all dimensions.
mlir::Value placeOne(Writer &w, mlir::Value cotangent, mlir::Value position, int64_t dim,
                     int64_t size);

} // namespace meshwright::nn

#endif // MESHWRIGHT_PASSES_DIFFERENTIATE_SELECTIONS_H

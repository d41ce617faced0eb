//===- IndexBound.h - what may index tables ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_INDEXBOUND_H
#define MESHWRIGHT_LIB_LAUNCHES_INDEXBOUND_H

#include "mlir/IR/Value.h"

namespace meshwright {

/// The number of rows that the elements of an index may name: the rows of the smallest
/// table that it indexes, through casts and moves; 0 if it indexes none.
int64_t getIndexBound(mlir::Value value);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_INDEXBOUND_H

//===- MoveOps.h - moving ops within a block --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_MOVEOPS_H
#define MESHWRIGHT_LIB_SUPPORT_MOVEOPS_H

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"

namespace meshwright {

/// Moves an op before another one of its block. After `Operation::moveBefore` the next question about the order would
/// number all ops of the block.
inline void moveWithinBlock(mlir::Operation *op, mlir::Block::iterator before) {
  mlir::Block *block = op->getBlock();
  op->remove();
  block->getOperations().insert(before, op);
}

inline void moveOpBefore(mlir::Operation *op, mlir::Operation *other) {
  if (op != other)
    moveWithinBlock(op, mlir::Block::iterator(other));
}

/// The same behind another op.
inline void moveOpAfter(mlir::Operation *op, mlir::Operation *other) {
  if (op != other && op != other->getNextNode())
    moveWithinBlock(op, std::next(mlir::Block::iterator(other)));
}

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_MOVEOPS_H

//===- OpClasses.h - ops as kernels see them --------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The questions that kernel formation and emitters ask of an op, composed of its
// traits (dialects/Dist/OpTraits.h).
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_OPCLASSES_H
#define MESHWRIGHT_LIB_CODEGEN_OPCLASSES_H

#include "mlir/IR/Operation.h"

namespace meshwright::lower {

/// Returns true for a splat, an iota or a mask of padding: each kernel that reads one makes it
/// for itself.
bool isFree(mlir::Operation *op);
/// Returns true for the positions of a padded dimension, and for a cheap op that reads
/// nothing but them and splats. A kernel makes positions of its loops and one number of the
/// rank, which it reads.
bool isPaddingMask(mlir::Operation *op);
/// Returns true if the result's elements are the operand's, read in place, and the op
/// is no view: a transpose, broadcast or slice.
bool isMovement(mlir::Operation *op);
/// Returns true if an element of the result can be computed in place from one element
/// of each operand: arithmetic, movement, and free ops. Views are apart, as they need
/// no kernel.
bool isElementwise(mlir::Operation *op);
/// Returns true for elementwise ops and views that may be computed again at each of
/// several points at no loss.
bool isCheap(mlir::Operation *op);

/// The cost of one element of an op in a kernel, which the target states
/// (`KernelTarget::getElementCost`).
enum class ElementCost {
  /// A few instructions.
  Few,
  /// A sequence of many instructions, which wants many registers.
  Many,
  /// No vector form: elements are computed one by one.
  OneByOne,
};

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_OPCLASSES_H

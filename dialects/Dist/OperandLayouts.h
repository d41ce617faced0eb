//===- OperandLayouts.h - layouts that an op states -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Elements of a constant or a broadcast are equal, so they have every layout. An op that counts
// them, as a sum does, depends on how many there are on all ranks. It counts those of one rank,
// unless it states the layout of the operand:
//
//   %s = nn.reduce sum %ones dims [0] {dist.operands = [#dist.sharding<@mesh, [(8{"dp"}), {?}]>]}
//       : (tensor<4x2xf32>) -> tensor<2xf32>
//
// The sum is a part of one of eight rows. Each factor states its size, since the op has the local
// type. Nothing is stated of an open dimension, which other elements may show.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_OPERANDLAYOUTS_H
#define MESHWRIGHT_DIALECTS_DIST_OPERANDLAYOUTS_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright::dist {

/// On an op of an SPMD function: a sharding for each operand whose layout the op states, a unit
/// attribute for the others.
inline constexpr llvm::StringLiteral kOperandsAttr = "dist.operands";

/// On an op of an SPMD function: the same for its results.
inline constexpr llvm::StringLiteral kResultsAttr = "dist.results";

/// On a `dist.permute`, a unit attribute: its result is another value with the operand's layout, whose
/// chunk i is the one that the rank of chunk i receives; zeros where it receives none. Without it, the
/// result is the operand's value with its chunks on other ranks.
inline constexpr llvm::StringLiteral kRelabelsAttr = "dist.relabels";

/// Checks one of the first two attributes on an op.
mlir::LogicalResult verifyStatedLayouts(mlir::Operation *op, mlir::NamedAttribute attr);

/// The layout of each dimension that the op states of operand `operand`; none of those that it
/// leaves open, and no dimensions if it states none. The attribute is valid. The content of padding
/// is zero.
using StatedDims = mlir::SmallVector<std::optional<DimLayout>, 4>;
StatedDims getStatedDims(mlir::Operation *op, unsigned operand, MeshAttr mesh);

/// The same for result `result`.
StatedDims getStatedResult(mlir::Operation *op, unsigned result, MeshAttr mesh);

/// Lets the op state the layout of some dimensions of a result.
void stateResult(mlir::Operation *op, unsigned result, const Layout &layout,
                 const llvm::SmallBitVector &dims, mlir::FlatSymbolRefAttr symbol, MeshAttr mesh);

/// Lets the op state the layout of some dimensions of an operand.
void stateLayout(mlir::Operation *op, unsigned operand, const Layout &layout,
                 const llvm::SmallBitVector &dims, mlir::FlatSymbolRefAttr symbol, MeshAttr mesh);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_OPERANDLAYOUTS_H

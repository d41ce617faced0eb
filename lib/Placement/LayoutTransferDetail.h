//===- LayoutTransferDetail.h - parts of the layout transfer ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H
#define MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H

#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/Splat.h"

namespace meshwright::layout_transfer {

using Pieces = mlir::SmallVector<dist::LayoutFactor, 1>;
using MaybeLayouts = mlir::FailureOr<ResultLayouts>;

/// Reports an error of the op, with a note on `operand` if it is given.
mlir::LogicalResult report(const TransferContext &context, const llvm::Twine &message,
                           int operand = -1);

/// Merges two lists of factors of one dimension into `a`, and refines both. Returns false if
/// they contradict each other. With `broadcasts`, a single element of true size 1 stretches. With
/// `groups`, one element may also stand for those of several ranks, as a key head does.
bool mergePieces(Pieces &a, mlir::ArrayRef<dist::LayoutFactor> b, dist::MeshAttr mesh,
                 bool broadcasts = false, bool groups = false);

/// An unsharded, unpadded factor.
dist::LayoutFactor makeFactor(int64_t size, bool uniform = false);

/// Joins the factors of a dimension into one if only the major factor is sharded, padded or
/// ordered. Lists of uniform factors stay as they are.
void collapse(dist::DimLayout &dim);

/// Returns true if all elements of a dimension are equal.
bool isUniform(const dist::DimLayout &dim);
/// Takes `axes`, the minor-most ones of factors, off a dimension: chunks are concatenated.
bool loseAxes(dist::DimLayout &dim, mlir::ArrayRef<dist::Axis> axes, dist::MeshAttr mesh);
/// Appends `axes` as the minor-most ones of a dimension, which is cut into chunks of `chunk`.
/// `padded` tells whether rows of padding had to be appended.
bool gainAxes(dist::DimLayout &dim, dist::AxisList axes, int64_t chunk, bool &padded);

/// Removes `axes` from the set `from`. Returns false if `from` lacks any of them.
bool removeAxes(dist::AxisList &from, mlir::ArrayRef<dist::Axis> axes);
/// `axes` sorted and joined, for sets.
dist::AxisList makeSet(mlir::ArrayRef<dist::Axis> axes, dist::MeshAttr mesh);

/// Appends `axis` as parts of prime size, major to minor.
void appendPrimes(dist::Axis axis, dist::AxisList &primes);

/// Number of padded factors.
int countPadded(const dist::Layout &layout);
/// The content of all elements of a value together: true data, padding and corners.
padding::Padding overallContent(const dist::Layout &layout);
/// Maps the events that conditions of the value's padding name.
void mapEvents(dist::Layout &layout, mlir::function_ref<uint32_t(uint32_t)> map);
/// The bound on the elements that an op without operands makes.
padding::Padding describeGenerated(mlir::Operation *op);

/// Returns true if blocks of the operands (see Layout::isBlock) give a block of the
/// result. A slice does not: it may take parts of several blocks.
bool keepsBlocks(mlir::Operation *op);
/// Returns true if the op adds a bias to the rows of a product.
bool hasBias(mlir::Operation *op);
/// Returns true if the op may read an operand that is this part of a whole (see
/// `LayoutOpInterface::takesPart`).
bool takesPart(const TransferContext &context, unsigned operand, const dist::Part &part);
/// As above for an op whose factor rule and traits say it:
/// - Sums pass through linear ops, and maxima through ops that keep order. Collectives read both.
/// - Blocks without a source pass through ops that keep blocks.
/// - No other part passes.
bool takesPartByRule(const TransferContext &context, unsigned operand, const dist::Part &part);

/// Returns false if the nn dialect was loaded without the models of its ops (see
/// registerPlacementModels). Rules alone would prove wrong programs.
bool hasModels(mlir::MLIRContext *context);

/// Follows the op's factor rule.
MaybeLayouts transferByRule(const TransferContext &context);
/// A reshape, whose result may have several candidates.
MaybeLayouts transferReshape(const TransferContext &context,
                             mlir::SmallVectorImpl<dist::Layout> *alternatives);
/// Chunks at their places in a whole dimension.
MaybeLayouts transferPlace(const TransferContext &context);
/// The other dist ops.
MaybeLayouts transferCollective(const TransferContext &context);

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H

//===- LayoutTransferDetail.h - parts of the layout transfer ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H
#define MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H

#include "meshwright/lib/Placement/LayoutTransfer.h"
#include "meshwright/lib/Placement/Splat.h"

namespace meshwright::layout_transfer {

using Pieces = mlir::SmallVector<dist::LayoutFactor, 1>;
using MaybeLayouts = mlir::FailureOr<ResultLayouts>;

/// Reports an error of the op, with a note on `operand` where it is given.
mlir::LogicalResult report(const TransferContext &context, const llvm::Twine &message,
                           int operand = -1);

/// Merges two lists of factors of one dimension into `a`, refining both; false
/// where they contradict. With `broadcasts` a single element of true size 1
/// stretches.
bool mergePieces(Pieces &a, mlir::ArrayRef<dist::LayoutFactor> b, dist::MeshAttr mesh,
                 bool broadcasts = false);

/// An unsharded, unpadded factor.
dist::LayoutFactor makeFactor(int64_t size, bool uniform = false,
                              dist::Padding content = dist::Padding::Finite);

/// Makes one factor of a dimension that is, but for uniform factors kept apart,
/// a major factor over whole ones.
void collapse(dist::DimLayout &dim);

/// `from` less `axes`, as sets; false where `from` lacks any of them.
bool removeAxes(dist::AxisList &from, mlir::ArrayRef<dist::Axis> axes);
/// `axes` sorted and joined, for sets.
dist::AxisList makeSet(mlir::ArrayRef<dist::Axis> axes, dist::MeshAttr mesh);

/// Appends `axis` as parts of prime size, major to minor.
void appendPrimes(dist::Axis axis, dist::AxisList &primes);

/// Number of padded factors.
int countPadded(const dist::Layout &layout);
/// What may stand anywhere in a value: true data, padding, corners.
padding::Padding overallState(const dist::Layout &layout);

/// Returns true if blocks of the operands (see Layout::isBlockwise) give a block of the
/// result. A slice does not: it may take parts of several blocks.
bool keepsBlocks(mlir::Operation *op);

/// By the op's factor rule; a contraction of equal elements has other candidates.
MaybeLayouts transferByRule(const TransferContext &context,
                            mlir::SmallVectorImpl<dist::Layout> *alternatives);
/// Reshape, and its other candidates.
MaybeLayouts transferReshape(const TransferContext &context,
                             mlir::SmallVectorImpl<dist::Layout> *alternatives);
/// dist ops.
MaybeLayouts transferCollective(const TransferContext &context);

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_LAYOUTTRANSFERDETAIL_H

//===- PermuteTransfer.h - layouts through a permute ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// This header is private to lib/Placement.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_PERMUTETRANSFER_H
#define MESHWRIGHT_LIB_PLACEMENT_PERMUTETRANSFER_H

#include "meshwright/lib/Placement/LayoutTransferDetail.h"

namespace meshwright::layout_transfer {

/// The ranks to which the permute sends nothing, by coordinate over its axes.
llvm::SmallBitVector getLeftOut(dist::PermuteOp op, int64_t size);

/// Replaces `layout` by the layout after the permute over `axes`. Fails if no layout
/// describes the result, and leaves `layout` as it is.
mlir::LogicalResult transferPermute(dist::PermuteOp op, mlir::ArrayRef<dist::Axis> axes,
                                    dist::MeshAttr mesh, dist::Layout &layout);

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_PERMUTETRANSFER_H

//===- Forms.h - tensors with scales beside their elements ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A tensor of codes may have a form (`#dist.form`) as its encoding: the codes of a block of
// elements and the scales of the block are stored together, in groups of rows. So one gather moves
// both, and no codes meet the scales of another weight.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_FORMS_H
#define MESHWRIGHT_DIALECTS_DIST_FORMS_H

#include "meshwright/dialects/Dist/Dist.h"

namespace meshwright::dist {

/// The form of a tensor; null for one that has only its elements.
FormAttr getForm(mlir::Type type);

/// The bytes of a tensor of static shape in memory, scales included.
int64_t getStoredBytes(mlir::RankedTensorType type);

/// The most elements that a tensor of static shape holds.
int64_t getStoredElements(mlir::RankedTensorType type);
/// The elements that it holds at balanced load, where it has all of its first dimension.
int64_t getExpectedElements(mlir::RankedTensorType type);
/// The rows that the fullest rank is expected to have over the mean, in the function of an op
/// (`DistDialect::kRowLoadAttr`).
double getRowLoad(mlir::Operation *op);

/// The tensor of i8 that has the bytes of one with a form, a row for each group of its rows. Other
/// types stay.
mlir::RankedTensorType getBytesType(mlir::RankedTensorType type);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_FORMS_H

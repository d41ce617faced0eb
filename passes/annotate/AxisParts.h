//===- AxisParts.h - several axes as one ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H
#define MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright {

/// Of the axes (major to minor), seen as one axis of their product's size, the
/// part of `size` behind `pre`; none where an axis does not split so.
std::optional<dist::AxisList> getPart(mlir::ArrayRef<dist::Axis> axes, int64_t pre, int64_t size);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_AXISPARTS_H

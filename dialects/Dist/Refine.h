//===- Refine.h - two cuts of a dimension at once ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_REFINE_H
#define MESHWRIGHT_DIALECTS_DIST_REFINE_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright::dist {

/// The factors of a dimension in two layouts, cut where either is; none where the
/// cuts do not fit.
using FactorPair = std::pair<LayoutFactor, LayoutFactor>;
std::optional<mlir::SmallVector<FactorPair, 2>> refine(const DimLayout &from, const DimLayout &to,
                                                    MeshAttr mesh);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_REFINE_H

//===- Groups.h - the ranks that a collective joins -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_GROUPS_H
#define MESHWRIGHT_LIB_LAUNCHES_GROUPS_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright {

/// The axes over which a collective's groups extend, sorted; whole axes for a
/// redistribution. Two collectives have groups that share two or more ranks
/// exactly where their axes overlap.
dist::AxisList getGroupAxes(mlir::Operation *collective, dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_GROUPS_H

//===- MeshTranslation.h - layouts on other meshes --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_MESHTRANSLATION_H
#define MESHWRIGHT_LIB_PLACEMENT_MESHTRANSLATION_H

#include "meshwright/dialects/Dist/Layout.h"

namespace meshwright::layout_transfer {

/// Writes a layout on mesh `from` with the axes of mesh `to`, which has the same ranks. Returns
/// false if the axes cut the ranks otherwise.
bool translate(dist::Layout &layout, dist::MeshAttr from, dist::MeshAttr to);

} // namespace meshwright::layout_transfer

#endif // MESHWRIGHT_LIB_PLACEMENT_MESHTRANSLATION_H

//===- StagesAttr.h - what stages make of a mesh ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_STAGESATTR_H
#define MESHWRIGHT_DIALECTS_DIST_STAGESATTR_H

#include "llvm/ADT/StringRef.h"

namespace meshwright {

/// On a `dist.mesh` of a composed program: for each stage the mesh, over the same
/// ranks, that its policies know.
inline constexpr llvm::StringLiteral kStageMeshesAttr = "dist.stages";

} // namespace meshwright

#endif // MESHWRIGHT_DIALECTS_DIST_STAGESATTR_H

//===- Links.h - the links that collectives share ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_LINKS_H
#define MESHWRIGHT_PASSES_SCHEDULE_LINKS_H

#include "meshwright/dialects/Dist/Dist.h"

namespace meshwright {

/// For each collective the number of its link, from 1 in the order in which links come first.
/// Collectives have one link if their groups can share two or more ranks, or if both have the
/// link of a third one.
llvm::SmallVector<int64_t> numberLinks(llvm::ArrayRef<dist::CollectiveOpInterface> collectives,
                                       dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_LINKS_H

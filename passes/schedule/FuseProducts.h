//===- FuseProducts.h - what products do besides ----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_FUSEPRODUCTS_H
#define MESHWRIGHT_PASSES_SCHEDULE_FUSEPRODUCTS_H

#include "meshwright/passes/schedule/Grouping.h"

namespace meshwright {

/// Moves ops from the kernels of a function into the kernels of products that precede
/// them, or that are their only readers, if that saves memory traffic.
void fuseProducts(mlir::Block &body, std::vector<KernelGroup> &groups,
                  const GroupingOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_FUSEPRODUCTS_H

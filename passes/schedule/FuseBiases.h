//===- FuseBiases.h - what attention computes of its bias -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_FUSEBIASES_H
#define MESHWRIGHT_PASSES_SCHEDULE_FUSEBIASES_H

#include "meshwright/lib/Support/ProgramMap.h"
#include "meshwright/passes/schedule/Grouping.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// For each attention whose kernel computes its bias, the ops of the bias. An op may
/// belong to several attentions. Unless it is a constant, no other live op reads it.
ProgramMap<mlir::Operation *, llvm::SmallVector<mlir::Operation *>>
fuseBiases(mlir::Block &body, const ProgramSet<mlir::Operation *> &live,
           const GroupingOptions &options);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_FUSEBIASES_H

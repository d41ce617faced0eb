//===- ReportProgram.h - launches and buffers of a plan ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads from a planned function when each launch is expected to run, how near to the ceilings of the
// device, and where its results are in the arena.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_REPORTPROGRAM_H
#define MESHWRIGHT_PASSES_SCHEDULE_REPORTPROGRAM_H

#include "meshwright/lib/Report/ProgramFacts.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// The facts of a planned entry, apart from the bytes from rank to rank (lib/Report/Peers.h). `layouts` are
/// those of its arguments.
ProgramFacts reportProgram(mlir::func::FuncOp func, llvm::ArrayRef<TensorLayout> layouts);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_REPORTPROGRAM_H

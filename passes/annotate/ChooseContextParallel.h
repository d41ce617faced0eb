//===- ChooseContextParallel.h - axes for Ulysses and ring ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H
#define MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace meshwright {

/// Returns the name of the axis under `key` (`ulysses` or `ring`); empty for none. For Auto,
/// this is the axis that `choose-context-parallel` noted on the module
/// (`dist.context_parallel`). Fails if the module has no such note.
mlir::FailureOr<std::string> getChosenAxis(mlir::ModuleOp module, llvm::StringRef key,
                                           const AxisChoice &given);
/// Returns the order. For Auto, this is the noted one, if there is one. Fails if the noted
/// order is unknown.
mlir::FailureOr<SequenceOrder> getChosenOrder(mlir::ModuleOp module, SequenceOrder given);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

//===- ChooseContextParallel.h - axes for Ulysses and ring ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H
#define MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

#include "meshwright/lib/Support/SequenceOrder.h"

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace meshwright {

/// Returns the axis under `key` (`ulysses` or `ring`). For `auto`, this is the axis that
/// `choose-context-parallel` noted on the module (`dist.context_parallel`). Fails if it
/// noted none.
mlir::FailureOr<std::string> getChosenAxis(mlir::ModuleOp module, llvm::StringRef key,
                                           llvm::StringRef given);
/// Returns the order. For Auto, this is the noted one, if there is one. Fails if the noted
/// order is unknown.
mlir::FailureOr<SequenceOrder> getChosenOrder(mlir::ModuleOp module, SequenceOrder given);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

//===- ChooseContextParallel.h - axes for Ulysses and ring ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H
#define MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace meshwright {

/// The value of an option that may be auto. For auto, the value that
/// `choose-context-parallel` noted on the module under `key` (`dist.context_parallel`).
/// Without such a note, an axis that is auto is an error, and an order stays auto.
mlir::FailureOr<std::string> getChosen(mlir::ModuleOp module, llvm::StringRef key,
                                       llvm::StringRef given);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

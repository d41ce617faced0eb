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

/// An option's value: as given, or where it is auto what `choose-context-parallel` chose
/// for `key` and left on the module (`dist.context_parallel`). Fails,
/// with an error, where an axis is auto and nothing was chosen; an order stays auto.
mlir::FailureOr<std::string> getChosen(mlir::ModuleOp module, llvm::StringRef key,
                                       llvm::StringRef given);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_CHOOSECONTEXTPARALLEL_H

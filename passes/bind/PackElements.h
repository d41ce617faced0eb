//===- PackElements.h - elements of four bits as bytes ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_BIND_PACKELEMENTS_H
#define MESHWRIGHT_PASSES_BIND_PACKELEMENTS_H

#include "mlir/IR/BuiltinOps.h"

namespace meshwright {

/// Returns true if a value of the module has elements that share bytes (f4E2M1FN).
bool sharesBytes(mlir::ModuleOp module);

/// Makes tensors of bytes of these values: see `--pack-elements`.
mlir::LogicalResult packElements(mlir::ModuleOp module);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_BIND_PACKELEMENTS_H

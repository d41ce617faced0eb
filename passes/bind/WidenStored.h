//===- WidenStored.h - stored weights that are widened at load --*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_BIND_WIDENSTORED_H
#define MESHWRIGHT_PASSES_BIND_WIDENSTORED_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include <string>

namespace meshwright {

/// A parameter that is computed from stored ones at load.
struct WidenedWeight {
  std::string name;
  mlir::RankedTensorType type;
  /// Computes it: a program with the stored parameters, by the names "0", "1", ..., and one output.
  mlir::OwningOpRef<mlir::ModuleOp> program;
  /// The stored parameters.
  mlir::SmallVector<std::string> sources;
};

/// Replaces weights of codes and scales by parameters of their numbers: see `--widen-stored`. Returns
/// the new parameters in the order of their first uses.
mlir::SmallVector<WidenedWeight> widenStored(mlir::ModuleOp module);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_BIND_WIDENSTORED_H

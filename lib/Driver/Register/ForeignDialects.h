//===- ForeignDialects.h - dialects that other tools read -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_REGISTER_FOREIGNDIALECTS_H
#define MESHWRIGHT_LIB_DRIVER_REGISTER_FOREIGNDIALECTS_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace meshwright {

/// Registers the namespaces of StableHLO modules (stablehlo, chlo, sdy), which have no ops here: an
/// op in MLIR's short form is an error that says how to import the module.
void registerForeignDialects(mlir::DialectRegistry &registry);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_REGISTER_FOREIGNDIALECTS_H

//===- Register.h - all dialects and passes ---------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_REGISTER_REGISTER_H
#define MESHWRIGHT_LIB_DRIVER_REGISTER_REGISTER_H

namespace mlir {
class DialectRegistry;
} // namespace mlir

namespace meshwright {

/// Adds Meshwright's dialects and the upstream ones they lower to, with all
/// external models.
void registerAllDialects(mlir::DialectRegistry &registry);

/// Registers Meshwright's passes and pipelines with the pass registry.
void registerAllPasses();

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_REGISTER_REGISTER_H

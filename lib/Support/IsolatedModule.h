//===- IsolatedModule.h - a copy in a context of its own --------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_ISOLATEDMODULE_H
#define MESHWRIGHT_LIB_SUPPORT_ISOLATEDMODULE_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Pass/PassManager.h"

#include <memory>
#include <string>

namespace meshwright {

/// A copy of a module in a context of its own, to try passes on.
///
/// - The copy's context has the dialects of the original's.
/// - Neither decisions nor diagnostics of the passes reach the original's context.
///   The first error is kept.
/// - The copy runs on the caller's thread alone.
class IsolatedModule {
public:
  explicit IsolatedModule(mlir::ModuleOp original);

  /// Null where the original cannot be written, or its copy not be read.
  mlir::ModuleOp get() const { return module ? *module : mlir::ModuleOp(); }
  /// Runs the passes that `build` adds. Fails where there is no copy, or a pass fails.
  mlir::LogicalResult run(llvm::function_ref<void(mlir::OpPassManager &)> build);
  /// The first error; empty if there was none.
  const std::string &getError() const { return error; }

private:
  std::string error;
  std::unique_ptr<mlir::MLIRContext> context;
  std::unique_ptr<mlir::ScopedDiagnosticHandler> handler;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_ISOLATEDMODULE_H

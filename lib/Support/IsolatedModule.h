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
#include <utility>

namespace meshwright {

/// A context for copies of modules, to try passes on.
///
/// - It has the dialects of the original's context.
/// - Neither decisions nor diagnostics of the passes reach the original's context. The first error is kept.
/// - Passes run on the caller's thread alone.
class IsolatedContext {
public:
  explicit IsolatedContext(mlir::MLIRContext *original);

  mlir::MLIRContext *get() const { return context.get(); }
  /// A copy of a module of any context; null where it cannot be written or read.
  mlir::OwningOpRef<mlir::ModuleOp> copy(mlir::ModuleOp other);
  /// Runs the passes that `build` adds on a module of this context. Fails where the module is null, or a pass
  /// fails.
  mlir::LogicalResult run(mlir::ModuleOp module, llvm::function_ref<void(mlir::OpPassManager &)> build);
  /// Returns the first error, and forgets it; empty if there was none.
  std::string takeError() { return std::exchange(error, std::string()); }

private:
  std::string error;
  std::unique_ptr<mlir::MLIRContext> context;
  std::unique_ptr<mlir::ScopedDiagnosticHandler> handler;
};

/// A copy of a module in an isolated context, to try passes on.
class IsolatedModule {
public:
  /// In a context of its own.
  explicit IsolatedModule(mlir::ModuleOp original);
  /// In one that copies share. It lives longer.
  IsolatedModule(mlir::ModuleOp original, IsolatedContext &context);

  /// Null where the original cannot be written, or its copy not be read.
  mlir::ModuleOp get() const { return module ? *module : mlir::ModuleOp(); }
  /// See `IsolatedContext`.
  mlir::OwningOpRef<mlir::ModuleOp> copy(mlir::ModuleOp other) { return context.copy(other); }
  mlir::LogicalResult run(llvm::function_ref<void(mlir::OpPassManager &)> build) { return run(get(), build); }
  mlir::LogicalResult run(mlir::ModuleOp clone, llvm::function_ref<void(mlir::OpPassManager &)> build) {
    return context.run(clone, build);
  }
  std::string takeError() { return context.takeError(); }

private:
  std::unique_ptr<IsolatedContext> own;
  IsolatedContext &context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_ISOLATEDMODULE_H

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
  /// A copy of another module in the same context; null where it cannot be written or read.
  mlir::OwningOpRef<mlir::ModuleOp> copy(mlir::ModuleOp other);
  /// Runs the passes that `build` adds. Fails where there is no copy, or a pass fails.
  mlir::LogicalResult run(llvm::function_ref<void(mlir::OpPassManager &)> build) {
    return run(get(), build);
  }
  /// The same on a module of the copy's context, as a clone of the copy.
  mlir::LogicalResult run(mlir::ModuleOp clone,
                          llvm::function_ref<void(mlir::OpPassManager &)> build);
  /// Drops the copy. The error stays.
  void discard() { module = nullptr; }
  /// The first error; empty if there was none.
  const std::string &getError() const { return error; }
  /// Returns the first error, and forgets it.
  std::string takeError() { return std::exchange(error, std::string()); }

private:
  std::string error;
  std::unique_ptr<mlir::MLIRContext> context;
  std::unique_ptr<mlir::ScopedDiagnosticHandler> handler;
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_ISOLATEDMODULE_H

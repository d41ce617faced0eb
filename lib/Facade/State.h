//===- State.h - what the public handles hold -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACADE_STATE_H
#define MESHWRIGHT_LIB_FACADE_STATE_H

#include "meshwright/Compiler.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/Support/raw_ostream.h"

namespace meshwright {

/// A context with all dialects. Programs have one function, on which passes run
/// one after another: threads would only be started and stopped.
std::unique_ptr<mlir::MLIRContext> createContext();

/// Collects what is said in a context for as long as it lives.
class DiagnosticCollector {
public:
  explicit DiagnosticCollector(mlir::MLIRContext *context);
  std::vector<Diagnostic> take() { return std::move(diagnostics); }

private:
  std::vector<Diagnostic> diagnostics;
  mlir::ScopedDiagnosticHandler handler;
};

/// A program's outside.
struct Ports {
  std::vector<Port> inputs, parameters, outputs;
};

/// Reads the ports of a module's `main`; fails with diagnostics where it has no
/// such function or where an argument or a result has no name.
mlir::FailureOr<Ports> getPorts(mlir::ModuleOp module);

/// The module's `main`, or null.
mlir::FunctionOpInterface getEntry(mlir::ModuleOp module);

std::string print(mlir::ModuleOp module, bool locations);

struct Program::State {
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  Ports ports;
  bool isSpmd = false;

  /// The module again, in another context.
  mlir::OwningOpRef<mlir::ModuleOp> cloneInto(mlir::MLIRContext *other) const;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACADE_STATE_H

//===- ProgramImpl.h - the programs behind public handles -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_PROGRAMIMPL_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_PROGRAMIMPL_H

#include "meshwright/Compiler.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/Support/raw_ostream.h"

namespace meshwright {

/// Makes a context with all dialects. It has no threads: passes run one after another on the
/// only function of a program.
std::unique_ptr<mlir::MLIRContext> createContext();

/// Collects the diagnostics of a context while this object exists.
class DiagnosticCollector {
public:
  explicit DiagnosticCollector(mlir::MLIRContext *context);
  std::vector<Diagnostic> take() { return std::move(diagnostics); }

private:
  std::vector<Diagnostic> diagnostics;
  mlir::ScopedDiagnosticHandler handler;
};

/// The entries, parameters and states of a program.
struct Ports {
  std::vector<Entry> entries;
  std::vector<Port> parameters, states;
};

/// Reads the ports of a module. Fails with a diagnostic if the module has no entry, if an
/// argument or a result has no name, or if two entries have parameters of one name and two
/// types.
mlir::FailureOr<Ports> getPorts(mlir::ModuleOp module);

/// Returns the entry of that name, or the default entry for an empty name. Returns null if there is
/// none.
mlir::FunctionOpInterface getEntry(mlir::ModuleOp module, llvm::StringRef name = "");

/// Returns the entry of that name, or the default entry for an empty name. Returns null, with an
/// error, if there is none.
const Entry *findEntry(const std::vector<Entry> &entries, std::string_view name,
                       std::vector<Diagnostic> &diagnostics);

std::string print(mlir::ModuleOp module, bool locations, bool generic = false);

/// The data behind the public class Program.
struct Program::Impl {
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  Ports ports;
  bool isSpmd = false;

  /// Copies the module into another context.
  mlir::OwningOpRef<mlir::ModuleOp> cloneInto(mlir::MLIRContext *other) const;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_PROGRAMIMPL_H

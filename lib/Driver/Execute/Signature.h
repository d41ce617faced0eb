//===- Signature.h - the arguments and results of entries -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_SIGNATURE_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_SIGNATURE_H

#include "meshwright/dialects/Dist/Dist.h"
#include "meshwright/dialects/Nn/Nn.h"
#include "meshwright/runtime/include/Program.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

namespace meshwright {

/// Reads the signatures of entries to the description of a program: its entries, and the
/// parameters and states that they share. The module's state is bound (see `bind-state`).
class Signatures {
public:
  /// Adds all states of the module, in order.
  Signatures(mlir::ModuleOp module, rt::ProgramDescription &program);
  /// Adds an entry. Fails after an error.
  mlir::LogicalResult add(mlir::func::FuncOp function);
  /// Adds what no entry uses: the layouts of other states, and the parameters with which states
  /// begin. Fails after an error.
  mlir::LogicalResult finish();

private:
  mlir::LogicalResult readSteps(rt::EntryDescription &entry);
  mlir::LogicalResult readUnused(nn::StateOp op, rt::ProgramValue &value);

  mlir::ModuleOp module;
  rt::ProgramDescription &program;
  dist::MeshAttr mesh;
  /// For each state, true if its layout is known.
  std::vector<bool> isPlaced;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_SIGNATURE_H

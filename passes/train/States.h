//===- States.h - the states of a training step -----------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A training step keeps parameters, averages of gradients and counters in states of its module.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_STATES_H
#define MESHWRIGHT_PASSES_TRAIN_STATES_H

#include "meshwright/dialects/Nn/Writer.h"

#include "llvm/ADT/StringSet.h"

namespace meshwright {

/// Makes the states of a module, and their reads and writes.
class States {
public:
  explicit States(mlir::ModuleOp module) : module(module) {}

  /// Adds a state behind the others. It begins with `fill`, or as a parameter if there is none.
  void add(llvm::StringRef name, mlir::Type type, mlir::TypedAttr fill, llvm::StringRef parameter,
           llvm::StringRef role, mlir::Location loc, bool isTransient = false);
  /// Adds a state of zeros, or leaves the one of this name as it is, and reads it.
  mlir::Value readZeros(nn::Writer &w, llvm::StringRef name, mlir::RankedTensorType type,
                        llvm::StringRef role, bool isTransient = false);
  mlir::Value read(nn::Writer &w, llvm::StringRef name, mlir::Type type);
  void write(nn::Writer &w, llvm::StringRef name, mlir::Value value);
  /// Writes the value that an update gives a state, or the old one in a step that is skipped.
  void update(nn::Writer &w, llvm::StringRef name, mlir::Value old, mlir::Value value);
  /// Updates hold only in steps where the condition is true: a scalar of type i1.
  void setCondition(mlir::Value isTaken) { this->isTaken = isTaken; }
  bool has(llvm::StringRef name) const { return names.contains(name); }

private:
  mlir::ModuleOp module;
  llvm::StringSet<> names;
  /// The state behind which the next one is added; null before the first.
  nn::StateOp last;
  mlir::Value isTaken;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_STATES_H

//===- Optimizer.h - the update rules of optimizers -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H
#define MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H

#include "meshwright/dialects/Nn/Writer.h"
#include "meshwright/passes/train/Passes.h"

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
  mlir::Value isTaken;
};

/// The update rule of an optimizer. Its state is named `optimizer.WHAT.NAME`, as PyTorch names it.
class Optimizer {
public:
  virtual ~Optimizer() = default;

  /// Makes the optimizer that the options name. Returns null, after an error, for another name
  /// and for numbers that it does not take.
  static std::unique_ptr<Optimizer>
  create(const BuildStepsPassOptions &options,
         llvm::function_ref<mlir::InFlightDiagnostic()> emitError);

  /// Writes what all parameters share. `rate` is a scalar of type f32.
  virtual void begin(nn::Writer &w, States &states, mlir::Value rate) = 0;
  /// Writes the new value of a parameter from its value and its gradient, which have one type.
  virtual mlir::Value update(nn::Writer &w, States &states, llvm::StringRef name,
                             mlir::Value value, mlir::Value gradient) = 0;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_TRAIN_OPTIMIZER_H

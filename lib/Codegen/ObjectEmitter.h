//===- ObjectEmitter.h - LLVM dialect to object code ------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_OBJECTEMITTER_H
#define MESHWRIGHT_LIB_CODEGEN_OBJECTEMITTER_H

#include "meshwright/lib/Codegen/CodeEmitter.h"
#include "meshwright/lib/Codegen/Processor.h"

#include <memory>

namespace llvm {
class TargetMachine;
}

namespace meshwright {

/// Emits object files for a processor. Programs of all targets have an entry, which a
/// processor executes.
class ObjectEmitter : public CodeEmitter {
public:
  static llvm::Expected<std::unique_ptr<ObjectEmitter>> create(const Processor &processor);
  ~ObjectEmitter() override;

  llvm::Expected<ObjectCode> emitKernel(mlir::ModuleOp module) override;
  /// A program's entry, in the LLVM dialect. Its object file states the version of the
  /// runtime's ABI.
  llvm::Expected<ObjectCode> emitEntry(mlir::ModuleOp module);

private:
  ObjectEmitter() = default;
  llvm::Expected<ObjectCode> emit(mlir::ModuleOp module, bool isEntry);

  Processor processor;
  std::unique_ptr<llvm::TargetMachine> machine;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_OBJECTEMITTER_H

//===- Codegen.h - LLVM dialect to object code ------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_CODEGEN_H
#define MESHWRIGHT_LIB_EXECUTE_CODEGEN_H

#include "meshwright/lib/Program/Lower.h"
#include "meshwright/lib/Codegen/Processor.h"

#include "llvm/Support/Error.h"

#include <memory>
#include <string>
#include <vector>

namespace llvm {
class TargetMachine;
}

namespace meshwright {

/// An object file in memory.
using ObjectCode = std::string;

/// What code for a processor may use of it, beyond what every one of its architecture
/// has: those of the runtime's known features that it has.
llvm::Expected<std::vector<std::string>> getUsedFeatures(const Processor &target);

/// Makes object code for a processor. Used by one thread at a time.
class CodeGenerator {
public:
  static llvm::Expected<std::unique_ptr<CodeGenerator>> create(const Processor &target);
  ~CodeGenerator();

  /// A kernel, from its source.
  llvm::Expected<ObjectCode> compileKernel(const KernelSource &kernel);
  /// A program's entry, in the LLVM dialect.
  llvm::Expected<ObjectCode> compileEntry(mlir::ModuleOp module);

  const llvm::TargetMachine &getMachine() const { return *machine; }

private:
  CodeGenerator() = default;
  llvm::Expected<ObjectCode> compile(mlir::ModuleOp module, bool isEntry);

  Processor target;
  std::unique_ptr<llvm::TargetMachine> machine;
  /// Kernels are lowered here, apart from the program's context, so that several
  /// generators work at once.
  std::unique_ptr<mlir::MLIRContext> context;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_CODEGEN_H

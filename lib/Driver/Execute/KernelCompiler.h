//===- KernelCompiler.h - kernels to code -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCOMPILER_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCOMPILER_H

#include "meshwright/lib/Codegen/KernelTarget.h"

namespace meshwright {

/// Compiles kernels for one target. Only one thread uses a compiler at a time.
class KernelCompiler {
public:
  static llvm::Expected<std::unique_ptr<KernelCompiler>> create(const KernelTarget &target);
  ~KernelCompiler();

  llvm::Expected<ObjectCode> compile(const KernelSource &kernel);

private:
  KernelCompiler(const KernelTarget &target, std::unique_ptr<CodeEmitter> emitter);

  const KernelTarget &target;
  std::unique_ptr<CodeEmitter> emitter;
  /// A context of its own, so that several compilers work at once.
  mlir::MLIRContext context;
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_KERNELCOMPILER_H

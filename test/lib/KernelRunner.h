//===- KernelRunner.h - one kernel, compiled and called ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For unit tests and benchmarks: a kernel without a program around it.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_TEST_LIB_KERNELRUNNER_H
#define MESHWRIGHT_TEST_LIB_KERNELRUNNER_H

#include "meshwright-c/Runtime.h"
#include "meshwright/lib/Codegen/Cpu/CpuTarget.h"

#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/MLIRContext.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <memory>
#include <string>
#include <vector>

namespace llvm::orc {
class LLJIT;
} // namespace llvm::orc

namespace meshwright::test {

/// A compiled kernel of MLIR.
class Kernel {
public:
  ~Kernel();

  /// Builds a function with arguments of these types by `emit`, and compiles it for
  /// the target. Behind the buffers come begin and end (index) and the workspace
  /// (a memref of i8). Ends the process if it does not compile.
  static std::unique_ptr<Kernel>
  build(llvm::ArrayRef<mlir::Type> types, const Processor &target,
        llvm::function_ref<void(mlir::ImplicitLocOpBuilder &, mlir::ValueRange)> emit);

  /// The same for one that was built for a program.
  static std::unique_ptr<Kernel> compile(const KernelSource &source, const Processor &target);

  /// Does the items begin .. end; buffers are inputs, then outputs.
  void operator()(llvm::ArrayRef<const void *> buffers, int64_t begin, int64_t end,
                  void *workspace) const {
    kernel(const_cast<void *const *>(buffers.data()), begin, end, workspace);
  }

  /// From MLIR to code, in milliseconds of this thread.
  double compileMilliseconds = 0;
  /// Set MESHWRIGHT_DUMP_KERNEL to a file name to have the object written there.

private:
  Kernel();
  mw_rt_kernel kernel = nullptr;
  std::unique_ptr<llvm::orc::LLJIT> jit;
};

/// A context with the dialects that kernels are made of.
std::unique_ptr<mlir::MLIRContext> makeContext();

} // namespace meshwright::test

#endif // MESHWRIGHT_TEST_LIB_KERNELRUNNER_H

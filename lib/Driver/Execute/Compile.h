//===- Compile.h - lowered programs to object code --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILE_H
#define MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILE_H

#include "meshwright/lib/Codegen/CodeEmitter.h"
#include "meshwright/lib/Driver/Program/Lower.h"

#include <vector>

namespace meshwright {

/// The time of a compilation.
struct CompileStatistics {
  int64_t kernels = 0;
  /// Kernels from the cache on disk.
  int64_t cached = 0;
  /// The ops of each other kernel, and the milliseconds of its thread.
  std::vector<std::pair<std::string, double>> compiled;
  /// The milliseconds of the entries.
  double entryMilliseconds = 0;
};

/// The code of a program: object files for the processor, and kernels for a device that has code of
/// its own.
struct CompiledCode {
  std::vector<ObjectCode> objects;
  /// Names and code.
  std::vector<std::pair<std::string, ObjectCode>> kernels;
};

/// Processors that this process may run on.
size_t countProcessors();

/// Compiles the kernels and the entries of a program, each by itself. Compiles kernels on as many
/// threads as the process may use, and each kernel once for all entries, and for all programs that
/// share the cache on disk.
llvm::Expected<CompiledCode> compileCode(llvm::ArrayRef<LoweredProgram> entries,
                                         const KernelTarget &target,
                                         CompileStatistics *statistics = nullptr);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_EXECUTE_COMPILE_H

//===- Compile.h - lowered programs to object code --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_EXECUTE_COMPILE_H
#define MESHWRIGHT_LIB_EXECUTE_COMPILE_H

#include "meshwright/lib/Codegen/CodeEmitter.h"
#include "meshwright/lib/Program/Lower.h"

#include <vector>

namespace meshwright {

/// Where the time went.
struct CompileStatistics {
  int64_t kernels = 0;
  /// Of them, those that came from the disk.
  int64_t cached = 0;
  /// Of each of the others: what it computes, and the milliseconds that its thread
  /// was at it.
  std::vector<std::pair<std::string, double>> compiled;
  /// Of the list of calls.
  double entryMilliseconds = 0;
};

/// The program's entry and kernels, an object file each. Kernels are compiled on
/// as many threads as the process may use, each once for all programs that share
/// the cache on disk.
llvm::Expected<std::vector<ObjectCode>> compileObjects(const LoweredProgram &program,
                                                       const KernelTarget &target,
                                                       CompileStatistics *statistics = nullptr);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_EXECUTE_COMPILE_H

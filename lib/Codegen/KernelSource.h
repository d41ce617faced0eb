//===- KernelSource.h - a kernel as text, and its lowering ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H
#define MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H

#include "meshwright/lib/Codegen/Processor.h"

#include "mlir/IR/BuiltinOps.h"

#include <string>

namespace meshwright {

/// A kernel, to be compiled by itself: whoever needs the same one needs the same
/// name and text.
struct KernelSource {
  std::string name;
  /// The ops of the first launch that needs it, for people.
  std::string purpose;
  /// MLIR: the function of that name, before `lowerKernel`.
  std::string text;
};

/// Loads the dialects that kernels are written in and lowered through.
void loadKernelDialects(mlir::MLIRContext &context);
/// Lowers a module with a kernel to the LLVM dialect.
mlir::LogicalResult lowerKernel(mlir::ModuleOp module, const Processor &target);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_CODEGEN_KERNELSOURCE_H

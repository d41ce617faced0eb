//===- LowerKernels.h - GPU kernels to the LLVM dialect ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_LOWERKERNELS_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_LOWERKERNELS_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/PatternMatch.h"

namespace meshwright::lower {

/// Loads the dialects that kernels are written in and lowered through.
void loadGpuKernelDialects(mlir::MLIRContext &context);

/// Functions as PTX has them: exponentials for bf16 by its own instruction, sine, cosine and
/// remainders of f32 through f64, and the rest as calls of libdevice.
void addGpuMathPatterns(mlir::RewritePatternSet &patterns);

/// Lowers a module with one kernel to the LLVM dialect. The kernel's arguments are pointers to
/// its buffers, and shared memory is a global.
mlir::LogicalResult lowerGpuKernel(mlir::ModuleOp module);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_LOWERKERNELS_H

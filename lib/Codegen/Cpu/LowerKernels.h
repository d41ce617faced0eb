//===- LowerKernels.h - kernels to the LLVM dialect -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_LOWERKERNELS_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_LOWERKERNELS_H

#include "meshwright/lib/Codegen/Processor.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"

namespace meshwright::lower {

/// Loads the dialects that kernels are written in and lowered through.
void loadKernelDialects(mlir::MLIRContext &context);

/// Lowers a module with a kernel to the LLVM dialect. The lowered kernel has the type
/// `mw_rt_kernel`.
mlir::LogicalResult lowerKernel(mlir::ModuleOp module, const Processor &processor);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_LOWERKERNELS_H

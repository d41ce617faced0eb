//===- KernelPatterns.h - rewrites ahead of LLVM's lowering -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_KERNELPATTERNS_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_KERNELPATTERNS_H

#include "meshwright/lib/Codegen/Processor.h"

#include "mlir/IR/PatternMatch.h"

namespace meshwright::lower {

/// Conversions from f32 to bf16, by the processor's instructions or by integer arithmetic.
void addNarrowingPatterns(mlir::RewritePatternSet &patterns, const Processor &processor);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_KERNELPATTERNS_H

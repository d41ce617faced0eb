//===- ApproximateMath.h - functions of f32 as polynomials ------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_APPROXIMATEMATH_H
#define MESHWRIGHT_LIB_CODEGEN_APPROXIMATEMATH_H

#include "mlir/IR/PatternMatch.h"

namespace meshwright::lower {

/// Functions of f32 as polynomials, which LLVM compiles to vector instructions. `hasAvx512` lets
/// vectors use the instructions of AVX-512. Sine and cosine remain calls, as their polynomials
/// are off by 5e-4 for large arguments.
void addMathPatterns(mlir::RewritePatternSet &patterns, bool hasAvx512);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_APPROXIMATEMATH_H

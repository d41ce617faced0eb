//===- GpuMatrix.h - products of fragments on GPUs --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A warp multiplies a 16x16 matrix of bf16 or f16 by a 16x8 matrix (mma.sync.m16n8k16). With
// g = lane / 4 and t = lane % 4, a lane holds, as pairs of consecutive columns, or rows of the second
// matrix:
//
//   a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)     b: (2t, g), (2t + 8, g)
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), each one f32
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUMATRIX_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUMATRIX_H

#include "meshwright/lib/Codegen/Elements.h"

namespace meshwright::lower {

/// Reads four matrices of 8 x 8 elements of 16 bits from shared memory by ldmatrix. Lane l gives
/// the index of row l % 8 of matrix l / 8, a multiple of 8. A lane gets the elements (g, 2t) and
/// (g, 2t + 1) of each matrix, or, `transposed`, (2t, g) and (2t + 1, g).
llvm::SmallVector<mlir::Value> emitLoadFragments(Builder &builder, mlir::Value buffer,
                                                 mlir::Value index, bool transposed);

/// Adds a product to the four sums: a has four words, b has two. `element` is bf16 or f16.
void emitMma(Builder &builder, mlir::Type element, llvm::ArrayRef<mlir::Value> a,
             llvm::ArrayRef<mlir::Value> b, llvm::MutableArrayRef<mlir::Value> sums);

/// Two f32 as a word of bf16 or f16, the first one in the low half.
mlir::Value emitPair(Builder &builder, mlir::Type element, mlir::Value low, mlir::Value high);

/// A flat buffer in the block's shared memory.
mlir::Value emitShared(Builder &builder, mlir::Value shared, int64_t offset, int64_t count,
                       mlir::Type type);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUMATRIX_H

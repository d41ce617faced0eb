//===- RandomNumbers.h - numbers of a counter -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_RANDOMNUMBERS_H
#define MESHWRIGHT_LIB_CODEGEN_RANDOMNUMBERS_H

#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace meshwright::lower {

/// The random numbers of an op. Seed and step are of type i64, scalars or as the indices.
struct RandomStream {
  mlir::Value seed, step;
  int64_t stream;
};

/// Emits a test of i64 indices, numbers or vectors: the element is kept. See nn.dropout. All
/// targets compute the same bits.
mlir::Value emitIsKept(mlir::ImplicitLocOpBuilder &builder, mlir::Value index,
                       const RandomStream &stream, double probability);

/// Emits random numbers of type f32 for i64 indices, numbers or vectors. See nn.random. All targets
/// compute the same bits.
mlir::Value emitUniform(mlir::ImplicitLocOpBuilder &builder, mlir::Value index,
                        const RandomStream &stream);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_RANDOMNUMBERS_H

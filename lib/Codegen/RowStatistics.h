//===- RowStatistics.h - sums and extremes of rows --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_ROWSTATISTICS_H
#define MESHWRIGHT_LIB_CODEGEN_ROWSTATISTICS_H

#include "meshwright/lib/Codegen/Elements.h"
#include "meshwright/lib/Codegen/RowPlan.h"

#include "mlir/Dialect/Vector/IR/VectorOps.h"

namespace meshwright::lower {

/// The type that a statistic is computed in.
mlir::Type getTypeOf(const Statistic &statistic);

/// Combines vectors or scalars to sums or extremes, and reduces a vector to a scalar.
class Reducer {
public:
  Reducer(Builder &builder, const Statistic &statistic);

  /// A vector of the element that changes no other one, and the element itself.
  mlir::Value getNeutral(int64_t width);
  mlir::Value getNeutral();
  mlir::Value combine(mlir::Value lhs, mlir::Value rhs);
  /// Halves a vector until one element is left: the same tree on all processors.
  mlir::Value reduce(mlir::Value vector);

private:
  Builder &b;
  mlir::Type type;
  bool isFloat;
  mlir::vector::CombiningKind kind;
};

/// The statistic that elements use, from the sum or the extreme of the whole row.
mlir::Value finishStatistic(Builder &builder, const Statistic &statistic, mlir::Value value);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_ROWSTATISTICS_H

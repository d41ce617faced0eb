//===- CountedRows.h - values of which some rows exist ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SCHEDULE_COUNTEDROWS_H
#define MESHWRIGHT_PASSES_SCHEDULE_COUNTEDROWS_H

#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace meshwright {

/// The values of a local program whose first rows exist, as many as a number known at run time: rows of
/// experts, and what ops compute of them row by row.
class CountedRows {
public:
  explicit CountedRows(mlir::func::FuncOp func);

  /// The offsets of which the last one is the number of rows. Null for a value whose rows all exist.
  mlir::Value getOffsets(mlir::Value value) const { return offsets.lookup(value); }
  /// The same for all of some values; null if they differ.
  mlir::Value getOffsets(mlir::ValueRange values) const;

private:
  void visit(mlir::Operation *op);

  ProgramMap<mlir::Value, mlir::Value> offsets;
};

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SCHEDULE_COUNTEDROWS_H

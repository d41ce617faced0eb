//===- ProgramCost.h - what a program costs a rank --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The cost model applied to ops and whole programs, before they are scheduled:
// good for comparing two programs that compute the same.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H
#define MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H

#include "meshwright/lib/CostModel/CostModel.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

namespace meshwright {

/// The arithmetic of a product (the `Product` trait), which may bound its time; 0 for other
/// ops, whose time is that of their memory traffic.
double getProductFlops(mlir::Operation *op);

/// Picoseconds of a local op: its memory traffic or arithmetic, whichever takes
/// longer.
int64_t getComputeTime(mlir::Operation *op, const CostModel &model);

/// What one run of a program costs a rank.
struct ProgramCost {
  /// Picoseconds of kernels, their launches included, and of collectives.
  int64_t compute = 0, communication = 0;
  /// Bytes that a rank sends.
  int64_t bytes = 0;
  /// Of collectives.
  int64_t launches = 0;

  int64_t getTime() const { return compute + communication; }
};

/// The cost of a function of local ops, nothing run beside anything else.
///
/// A product is a kernel of its own that takes its arithmetic or its memory
/// traffic, whichever is longer: with few tokens the weights it reads. Ops between
/// products are fused: they read and write what comes from, or goes to, a product,
/// a collective or the outside, and keep the rest in registers.
ProgramCost getProgramCost(mlir::FunctionOpInterface function, const CostModel &model);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H

//===- ProgramCost.h - what a program costs a rank --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The cost model, applied to ops and whole programs before they are scheduled. It
// compares two programs that compute the same.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H
#define MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H

#include "meshwright/lib/CostModel/CostModel.h"
#include "meshwright/lib/Support/ProgramMap.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/DenseSet.h"

namespace meshwright {

/// The value whose memory `value` shares: views move nothing.
mlir::Value skipViews(mlir::Value value);

/// The arithmetic of a product (the `Product` trait), which may bound its time; 0 for other
/// ops, whose time is that of their memory traffic.
double getProductFlops(mlir::Operation *op);

/// Adds an op to the work of its kernel, without the bytes that the kernel reads and writes.
void addWork(mlir::Operation *op, KernelWork &work);

/// Bytes of the parameters that a function reads, of which its arguments tell.
int64_t getWeightBytes(mlir::FunctionOpInterface function);

/// Picoseconds of a local op: the longer of its memory traffic and its arithmetic.
int64_t getComputeTime(mlir::Operation *op, const CostModel &model);

/// The values of a block that kernels read or write in memory: arguments, results, and what
/// products, lookups and collectives read and make. Ops between them are fused, and keep other
/// values in registers.
ProgramSet<mlir::Value> getValuesInMemory(mlir::Block &block);

/// Bytes of memory that an op reads and writes if it is fused with the ops beside it. It is no
/// product.
int64_t getFusedBytes(mlir::Operation *op, const ProgramSet<mlir::Value> &inMemory);

/// The cost of one run of a program on a rank.
struct ProgramCost {
  /// Picoseconds of kernels, their launches included, and of collectives.
  int64_t compute = 0, communication = 0;
  /// Bytes that a rank sends.
  int64_t bytes = 0;
  /// Launches of collectives.
  int64_t launches = 0;

  int64_t getTime() const { return compute + communication; }
};

/// The elements of operand `i` of a collective that moves rows (`movesRows`) that a rank is expected to have: those
/// of the fullest rank.
int64_t getMovedElements(dist::CollectiveOpInterface op, unsigned i);

/// The cost of a function of local ops, without overlap.
/// - A product is a kernel of its own. It takes the longer of its arithmetic and its memory
///   traffic (with few tokens, the weights that it reads).
/// - Ops between products are fused (see `getValuesInMemory`).
ProgramCost getProgramCost(mlir::FunctionOpInterface function, const CostModel &model);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_PROGRAMCOST_H

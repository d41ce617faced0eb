//===- SortByOperands.h - definitions before uses ---------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_SORTBYOPERANDS_H
#define MESHWRIGHT_LIB_SUPPORT_SORTBYOPERANDS_H

#include "mlir/IR/Block.h"

namespace meshwright {

/// Moves ops of a block behind the ops that define their operands, the operands of nested ops among them, and keeps
/// the order otherwise. The terminator stays. Ops must not depend on themselves.
///
/// The order is that of `mlir::sortTopologically`: of sweeps over the ops that are left, each of which takes the ops
/// whose operands it has passed. That function makes the sweeps, so it takes time that grows with the square of the
/// program where each op waits for one behind it. This one counts the sweeps before an op, in linear time.
void sortByOperands(mlir::Block &block);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_SORTBYOPERANDS_H

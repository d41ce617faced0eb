//===- Work.h - arithmetic of ops -------------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_WORK_H
#define MESHWRIGHT_DIALECTS_DIST_WORK_H

#include "mlir/IR/Operation.h"

namespace meshwright::dist {

/// Elements of the largest operand, or of the first result if it has more.
int64_t countElements(mlir::Operation *op);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_WORK_H

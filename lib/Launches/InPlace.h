//===- InPlace.h - results over operands ------------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_LAUNCHES_INPLACE_H
#define MESHWRIGHT_LIB_LAUNCHES_INPLACE_H

#include "meshwright/dialects/Rt/Rt.h"

namespace meshwright {

/// Returns true if a kernel may write a result over an operand that no later op reads:
/// - both have the same number of bytes;
/// - the kernel computes element by element;
/// - an element of the operand is read only for the element at the same place of this
///   result.
bool canWriteInPlace(rt::KernelOp kernel, unsigned operand, unsigned result);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_INPLACE_H

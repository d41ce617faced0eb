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

/// Whether a kernel may write a result over an operand that nobody needs behind
/// it: both have as many bytes, the kernel computes element by element, and no
/// element of any result but the one at the same place depends on an element of
/// the operand.
bool canWriteInPlace(rt::KernelOp kernel, unsigned operand, unsigned result);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_LAUNCHES_INPLACE_H

//===- SmallProduct.h - products without a library --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCT_H
#define MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCT_H

#include "SmallProductKernel.h"

namespace meshwright::rt {

/// Multiplies f32, of at most `kSmallSteps` steps, by the vectors of this processor.
void multiplySmall(const PlainProduct<float> &product);

/// Multiplies f64, the type of references, by plain loops.
void multiplyDouble(const PlainProduct<double> &product);

} // namespace meshwright::rt

#endif // MESHWRIGHT_RUNTIME_SRC_CPU_SMALLPRODUCT_H

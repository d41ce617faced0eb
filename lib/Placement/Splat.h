//===- Splat.h - constants of one element -----------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_PLACEMENT_SPLAT_H
#define MESHWRIGHT_LIB_PLACEMENT_SPLAT_H

#include "mlir/IR/Value.h"

#include <optional>

namespace meshwright::padding {

/// The value of all elements if `value` is a splat constant, seen through the regions of
/// launches.
std::optional<double> getSplat(mlir::Value value);

} // namespace meshwright::padding

#endif // MESHWRIGHT_LIB_PLACEMENT_SPLAT_H

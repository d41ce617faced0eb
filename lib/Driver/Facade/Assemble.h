//===- Assemble.h - global values from local values -------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_DRIVER_FACADE_ASSEMBLE_H
#define MESHWRIGHT_LIB_DRIVER_FACADE_ASSEMBLE_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/runtime/include/Types.h"

namespace meshwright {

/// Assembles the global value from the ranks' local values, once for each set of ranks that
/// holds all of it. Partial values are combined, and padding is dropped. `locals` has one array
/// of the layout's local shape for each rank.
std::vector<std::vector<double>> assemble(const dist::Layout &layout, dist::MeshAttr mesh,
                                          rt::DType type, llvm::ArrayRef<std::vector<char>> locals);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_DRIVER_FACADE_ASSEMBLE_H

//===- Assemble.h - global values from what ranks hold ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_FACADE_ASSEMBLE_H
#define MESHWRIGHT_LIB_FACADE_ASSEMBLE_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/runtime/include/Types.h"

namespace meshwright {

/// The global value that the ranks' local ones stand for, once for each set of
/// ranks that holds all of it: partial values are combined, padding is left out.
/// `locals` has one array of the layout's local shape a rank.
std::vector<std::vector<double>> assemble(const dist::Layout &layout, dist::MeshAttr mesh,
                                          rt::DType type, llvm::ArrayRef<std::vector<char>> locals);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_FACADE_ASSEMBLE_H

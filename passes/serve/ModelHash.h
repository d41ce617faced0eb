//===- ModelHash.h - a hash of a forward pass -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_MODELHASH_H
#define MESHWRIGHT_PASSES_SERVE_MODELHASH_H

#include "meshwright/dialects/Nn/Serving.h"

namespace meshwright {

/// The hashes of a forward pass of one sequence, before it is rewritten. They depend on no mesh, option or
/// page size, and `parameters` does not depend on the length of the sequence.
nn::ModelHash hashModel(mlir::ModuleOp module);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_MODELHASH_H

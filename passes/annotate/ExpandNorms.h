//===- ExpandNorms.h - norms over sharded features --------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_ANNOTATE_EXPANDNORMS_H
#define MESHWRIGHT_PASSES_ANNOTATE_EXPANDNORMS_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright {

/// Writes a norm (nn.rms_norm, nn.layer_norm) out as sums over its features and
/// what is made of them, so that the features can be sharded: the sums of each
/// row are all that ranks exchange. False for other ops.
bool expandNorm(mlir::Operation *op);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_EXPANDNORMS_H

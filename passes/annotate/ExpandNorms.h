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

/// Replaces a norm (nn.rms_norm, nn.layer_norm) by sums over its features and elementwise
/// ops. The features can then be sharded: ranks exchange only the sums of each row.
/// Returns false for other ops.
bool expandNorm(mlir::Operation *op);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_ANNOTATE_EXPANDNORMS_H

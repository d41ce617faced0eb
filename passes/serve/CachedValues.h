//===- CachedValues.h - which values of attention a cache holds -*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_CACHEDVALUES_H
#define MESHWRIGHT_PASSES_SERVE_CACHEDVALUES_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright {

/// Returns true if the values are the first columns of the keys: the cache holds the keys alone.
bool readsValuesFromKeys(nn::AttentionOp op);

/// Elements of the cache for one token, of the rank with the most kv heads.
int64_t getCachedElements(nn::AttentionOp op, int64_t ranks);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_CACHEDVALUES_H

//===- CachedAttention.h - attention that reads a cache ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A step writes the keys and values of its tokens into pages, and attends to the pages of each
// request. Two forms depend on the sizes of serving:
//
// - By heads: one table of pages for each request.
// - Dealt over A ranks: the pages are A equal ranges, and block b of a request is in range b mod A.
//   Each range is attended to by itself, and the parts are merged. So a rank that holds a range
//   needs no other.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_PASSES_SERVE_CACHEDATTENTION_H
#define MESHWRIGHT_PASSES_SERVE_CACHEDATTENTION_H

#include "meshwright/Serving.h"
#include "meshwright/dialects/Nn/Writer.h"

namespace meshwright {

/// The inputs of a step that say which rows of which pages its tokens have.
struct CacheInputs {
  mlir::Value slots, tables, starts, lengths;
};

/// The bias of paged attention: slopes [heads], or numbers of distances [heads, n]. Null values are not added.
struct CachedBias {
  mlir::Value slopes, distances;
};

/// Writes attention of a step in place of `op`. Query, keys and values are [groups, tokens, heads,
/// features]; there are no values where they are the first columns of the keys. Returns the result, which is as the query, and the log-sum-exp
/// [groups, tokens, heads] if `op` has it. Makes the states `NAME.keys` and `NAME.values`, or
/// `NAME.latent`, if the module lacks them.
std::pair<mlir::Value, mlir::Value>
writeCachedAttention(nn::Writer &w, nn::AttentionOp op, mlir::Value query, mlir::Value keys,
                     mlir::Value values, const CachedBias &bias, mlir::StringRef name,
                     const CacheInputs &inputs, const ServingSizes &sizes);

} // namespace meshwright

#endif // MESHWRIGHT_PASSES_SERVE_CACHEDATTENTION_H

//===- CacheSharding.h - where ranks hold a group's cache -------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_CACHESHARDING_H
#define MESHWRIGHT_LIB_SUPPORT_CACHESHARDING_H

#include "meshwright/lib/Support/OptionParser.h"

namespace meshwright {

/// How the ranks of a group share its cache.
enum class CacheSharding {
  Auto,
  /// By key/value heads. Ranks have copies where there are fewer heads.
  Heads,
  /// By pages: block b of a request is on rank b mod the number of ranks.
  Sequence
};

template <> struct Spellings<CacheSharding> {
  static constexpr Spelling<CacheSharding> all[] = {{CacheSharding::Heads, "heads"},
                                                    {CacheSharding::Sequence, "sequence"},
                                                    {CacheSharding::Auto, "auto"}};
};

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_CACHESHARDING_H

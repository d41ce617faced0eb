//===- GatherKind.h - the forms in which weights travel ---------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_SUPPORT_GATHERKIND_H
#define MESHWRIGHT_LIB_SUPPORT_GATHERKIND_H

#include "meshwright/lib/Support/OptionParser.h"

namespace meshwright {

/// The form in which a weight travels to the ranks that use it.
enum class GatherKind {
  /// As it is stored.
  Plain,
  /// f8E4M3FN with a power of two for each 32 elements along the dimension that a product
  /// contracts.
  Mxfp8,
  /// f4E2M1FN with an f8E4M3FN for each 16 x 16 elements, and an f32 for all of them.
  Nvfp4
};

template <> struct Spellings<GatherKind> {
  static constexpr Spelling<GatherKind> all[] = {
      {GatherKind::Plain, "plain"}, {GatherKind::Mxfp8, "mxfp8"}, {GatherKind::Nvfp4, "nvfp4"}};
};

/// The rows and columns that share a scale; `along` is the dimension that a product contracts.
struct BlockShape {
  int64_t rows, columns;
};
inline BlockShape getBlockShape(GatherKind kind, int64_t along) {
  switch (kind) {
  case GatherKind::Plain:
    return {1, 1};
  case GatherKind::Mxfp8:
    return along == 0 ? BlockShape{32, 1} : BlockShape{1, 32};
  case GatherKind::Nvfp4:
    return {16, 16};
  }
  llvm_unreachable("unknown kind");
}

/// Rows of a shard come in multiples of it, so that no block crosses ranks in any form.
inline int64_t getRowMultiple(GatherKind kind) { return getBlockShape(kind, 0).rows; }

} // namespace meshwright

#endif // MESHWRIGHT_LIB_SUPPORT_GATHERKIND_H

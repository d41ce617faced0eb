//===- DpAttention.h - the groups of data-parallel attention ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// With data-parallel attention the ranks of tensor parallelism form groups. The groups are the
// major part of the axes, and the ranks of a group the minor one. Attention computes the tokens of
// a group on the ranks of the group.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_DIALECTS_DIST_DPATTENTION_H
#define MESHWRIGHT_DIALECTS_DIST_DPATTENTION_H

#include "meshwright/dialects/Dist/Dist.h"

#include <cstdint>
#include <optional>

namespace meshwright::dist {

/// The name of the attribute of a mesh: `{dense_tp = 8 : i64, groups = 4 : i64, own_head = true}`.
inline constexpr llvm::StringLiteral kDpAttentionAttr = "dist.dp_attention";

/// How a program uses the groups of its tensor-parallel ranks.
struct DpAttention {
  int64_t groups = 1;
  /// The ranks that share a dense layer: 1, or all tensor-parallel ranks.
  int64_t denseTp = 1;
  /// A group computes the logits of its own tokens alone.
  bool hasOwnHead = false;
};

/// Reads the attribute of a mesh; none if it has no groups.
std::optional<DpAttention> getDpAttention(MeshOp meshOp);
void setDpAttention(MeshOp meshOp, const DpAttention &chosen);
/// Checks that the attribute is on a mesh, and that its numbers divide the number of ranks.
mlir::LogicalResult verifyDpAttention(mlir::Operation *op, mlir::Attribute attribute);

} // namespace meshwright::dist

#endif // MESHWRIGHT_DIALECTS_DIST_DPATTENTION_H

//===- PagedShape.h - attention to pages, as kernels see it -----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The sizes and the buffers of nn.paged_attention, as the kernels of all targets see them.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_PAGEDSHAPE_H
#define MESHWRIGHT_LIB_CODEGEN_PAGEDSHAPE_H

#include "meshwright/dialects/Nn/Nn.h"

#include <optional>

namespace meshwright::lower {

/// The sizes of an op.
struct PagedShape {
  explicit PagedShape(nn::PagedAttentionOp op);

  /// A row of the values has `valueStride` features, of which the first `valueFeatures` are read.
  int64_t groups, tokens, queryHeads, keyHeads, features, valueStride, valueFeatures;
  int64_t pages, pageSize, requests, blocks;
  /// Tables, the ranks that blocks are dealt over, and the parts of the keys of a table.
  int64_t ranks, deal, parts;
  /// The keys before its own that a token sees, if these are not all of them.
  std::optional<int64_t> left;
  bool sharesPages;
  /// The table of distances counts positions of keys.
  bool biasByPosition;
  mlir::Type element, compute;

  /// Query heads that share a key head. They are stored consecutively.
  int64_t getGroup() const { return queryHeads / keyHeads; }
  /// The keys of a table.
  int64_t getKeys() const { return blocks * pageSize; }
  /// The parts of the results.
  int64_t getNumParts() const { return ranks * parts; }
  /// Operations and bytes, if each request has half of the keys that it may have.
  int64_t getFlops() const;
  int64_t getBytes() const;
};

/// The flat buffers of a kernel of attention to pages.
struct PagedBuffers {
  mlir::Value query, keys, values, tables, starts, lengths, deals, slopes, sinks, distances, result, lse;

  /// The tensors that the kernel reads, or writes, each with the member for its buffer. Keys and values in the same
  /// pages are one tensor.
  using Member = std::pair<mlir::Value, mlir::Value *>;
  llvm::SmallVector<Member> getInputs(nn::PagedAttentionOp op);
  llvm::SmallVector<Member> getOutputs(nn::PagedAttentionOp op);
  /// Takes the buffers of these tensors, which are the first arguments of a kernel. Returns their number.
  unsigned bind(nn::PagedAttentionOp op, mlir::Block &entry);
};

/// Reads the tables through a table of all ids, so that an id out of range is an error of the step. -1
/// becomes 0: no token sees its block.
mlir::Value emitCheckedTables(mlir::OpBuilder &builder, nn::PagedAttentionOp op);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_PAGEDSHAPE_H

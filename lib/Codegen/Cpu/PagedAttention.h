//===- PagedAttention.h - attention to caches in pages ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDATTENTION_H
#define MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDATTENTION_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright::lower {

/// Writes an attention whose page ids are checked. Its keys are cut into parts, which are merged, if
/// tokens and heads are few. The parts follow from the shapes alone.
mlir::Value expandPagedAttention(mlir::OpBuilder &builder, nn::PagedAttentionOp op);
/// Writes the op again: a kernel computes it.
mlir::Value keepMergeParts(mlir::OpBuilder &builder, nn::MergePartsOp op);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_CPU_PAGEDATTENTION_H

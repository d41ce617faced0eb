//===- PagedAttention.h - attention to pages, on GPUs -----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_PAGEDATTENTION_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_PAGEDATTENTION_H

#include "meshwright/dialects/Nn/Nn.h"

namespace meshwright::lower {

/// Writes an attention whose page ids are checked: one kernel computes it.
mlir::Value keepPagedAttention(mlir::OpBuilder &builder, nn::PagedAttentionOp op);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_PAGEDATTENTION_H

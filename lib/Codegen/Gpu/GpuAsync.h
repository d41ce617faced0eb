//===- GpuAsync.h - asynchronous copies and products on GPUs ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Instructions of sm_90a. The tensor memory accelerator copies boxes of a tensor to shared memory,
// and an mbarrier there counts their bytes. A warpgroup, four warps, multiplies matrices in shared
// memory (wgmma).
//
// A tile is stored as panels of 64 columns, one after another. A panel has a row in each 128 bytes,
// whose 16-byte chunks are permuted (128-byte swizzle): no two rows of eight are in the same banks. A
// panel is a box of a copy and the canonical layout of a product, if it begins at a multiple of 1024
// bytes.
//
// Addresses in shared memory are i32.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUASYNC_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUASYNC_H

#include "meshwright/lib/Codegen/Elements.h"

namespace meshwright::lower {

/// The columns of a panel, the bytes of its rows, and the multiple at which it begins.
constexpr int64_t kPanelColumns = 64, kPanelRowBytes = 128, kPanelAlignment = 1024;
/// The threads of a warpgroup.
constexpr int64_t kGroupThreads = 128;

/// The address of shared memory.
mlir::Value emitSharedAddress(Builder &builder, mlir::Value shared);

/// Makes a word of 8 bytes a barrier whose phases end with so many arrivals, if `condition` holds.
/// Threads see barriers after `emitBarrierFence` and a barrier of the block.
void emitBarrierInit(Builder &builder, mlir::Value barrier, int64_t arrivals,
                     mlir::Value condition);
void emitBarrierFence(Builder &builder);
/// Arrives at the barrier if `condition` holds.
void emitArrival(Builder &builder, mlir::Value barrier, mlir::Value condition);
/// Arrives at the barrier, whose phase then does not end before copies have written `bytes`.
void emitArrivalOfCopies(Builder &builder, mlir::Value barrier, int64_t bytes);
/// Waits for the end of the phase of this parity, an i32. A barrier begins in a phase of parity 0:
/// the one before it has ended.
void emitWait(Builder &builder, mlir::Value barrier, mlir::Value parity);

/// Copies a box of the tensor of a map that begins at this column, row and matrix, as i32. Zeros are
/// in place of what is not in the tensor.
void emitBoxCopy(Builder &builder, mlir::Value to, mlir::Value map,
                 llvm::ArrayRef<mlir::Value> begin, mlir::Value barrier);
/// Makes this thread's writes to shared memory visible to copies and products.
void emitAsyncFence(Builder &builder);

/// Gives registers of each thread of a warpgroup to others, or takes some: they then have `count`.
void emitRegisterCount(Builder &builder, int64_t count, bool takes);

/// 64 rows of sums, a warpgroup's. The sums of a thread are fragments of 8 columns, as those of
/// mma.sync (GpuMatrix.h), of which a warp has 16 rows.
///
/// Products of 64 rows of panels at `left` and the rows of panels at `right`, over `depth` columns, a
/// multiple of 16. Panels have `leftRows` and `rightRows` rows; each of the latter gives a column
/// of sums.
llvm::SmallVector<mlir::Value> emitGroupProduct(Builder &builder, mlir::Type element,
                                                mlir::Value left, int64_t leftRows,
                                                mlir::Value right, int64_t rightRows,
                                                int64_t depth);
/// Adds products to the sums. `left` has four words, fragments of mma.sync, for each 16 rows of
/// panels at `right`.
llvm::SmallVector<mlir::Value> emitGroupProduct(Builder &builder, mlir::Type element,
                                                llvm::ArrayRef<mlir::Value> left,
                                                mlir::Value right, mlir::ValueRange sums);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUASYNC_H

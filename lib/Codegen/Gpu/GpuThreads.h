//===- GpuThreads.h - threads of a block, and their exchange ----*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_CODEGEN_GPU_GPUTHREADS_H
#define MESHWRIGHT_LIB_CODEGEN_GPU_GPUTHREADS_H

#include "meshwright/lib/Codegen/Elements.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace meshwright::lower {

/// The number of this thread in its block, and of its block, as an index below `count`.
mlir::Value emitThread(Builder &builder, int64_t count);
mlir::Value emitBlock(Builder &builder, int64_t count);
/// The i64, in a form of which nothing is computed ahead of the loops around: numbers that follow
/// from it need no registers there.
mlir::Value emitOpaque(Builder &builder, mlir::Value value);
/// The number of this thread in the grid.
mlir::Value emitItem(Builder &builder, int64_t blocks, int64_t threads);
/// Emits `body` for the item of the thread's number in the grid, if that is below `items`, and below the number
/// `existing` unless it is null.
void emitForItem(Builder &builder, int64_t items, int64_t blocks, int64_t threads,
                 llvm::function_ref<void(mlir::Value)> body, mlir::Value existing = {});
/// Divides `value`, and returns the remainder.
mlir::Value emitSplit(Builder &builder, mlir::Value &value, int64_t size);
/// Orders the shared memory of the threads of a block. All of them have to execute it.
void emitBarrier(Builder &builder);
/// The same, and whether `value` is true in any of the threads.
mlir::Value emitAny(Builder &builder, mlir::Value value);
/// The same for `threads` threads that name this barrier, an i32 from 1 to 15. Barrier 0 is that of
/// all threads.
void emitBarrier(Builder &builder, mlir::Value barrier, int64_t threads);
mlir::Value emitAny(Builder &builder, mlir::Value value, mlir::Value barrier, int64_t threads);
/// The same for the threads of a warp.
void emitWarpBarrier(Builder &builder);
/// The scalar of the thread of the warp whose number differs in the bits of `mask`. All threads
/// of the warp have to execute it.
mlir::Value emitExchange(Builder &builder, mlir::Value value, int64_t mask);
/// Combines the scalars of `lanes` consecutive threads, a power of two up to 32. Each gets the
/// result.
mlir::Value emitLaneReduction(Builder &builder, mlir::Value value, int64_t lanes,
                              llvm::function_ref<mlir::Value(mlir::Value, mlir::Value)> combine);

/// For each thread of the warp a bit, whether `value` is true in it. All threads of the warp have
/// to execute it.
mlir::Value emitBallot(Builder &builder, mlir::Value value);
/// The number of bits of a word that are set, and the same for the bits of the warp's threads
/// before this one.
mlir::Value emitBitCount(Builder &builder, mlir::Value word);
mlir::Value emitBitCountBefore(Builder &builder, mlir::Value word);
/// Notes the position of an index that is not inside in the fault word of the launch. The first
/// position remains.
void emitFault(Builder &builder, mlir::Value isInside, mlir::Value fault, mlir::Value position);

} // namespace meshwright::lower

#endif // MESHWRIGHT_LIB_CODEGEN_GPU_GPUTHREADS_H

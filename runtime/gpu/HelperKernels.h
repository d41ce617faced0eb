//===- HelperKernels.h - kernels of the backend itself ----------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Small kernels that move or combine elements: they pack the messages of collectives, cut own parts
// of values, write masks and replace rows. Their sizes are parameters, so that one kernel serves all
// shapes. They are written as PTX for sm_80, which all chips run.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_RUNTIME_GPU_HELPERKERNELS_H
#define MESHWRIGHT_RUNTIME_GPU_HELPERKERNELS_H

#include "Processor.h"

namespace meshwright::rt::gpu {

/// A box of elements in two buffers of the GPU.
struct Box : StridedBox {
  /// The box of `extents` at `destination` in an array of `toShape`, and at `source` in one of
  /// `fromShape`.
  static Box make(const std::vector<int64_t> &fromShape, const std::vector<int64_t> &source,
                  const std::vector<int64_t> &toShape, const std::vector<int64_t> &destination,
                  const std::vector<int64_t> &extents, int64_t elementSize);
  /// Joins dimensions that are contiguous in both buffers, and makes elements as wide as they can be.
  void simplify();
};

/// Enqueues helper kernels on a GPU. With `prepares`, functions load the kernels that they need, and
/// enqueue nothing. With `skips` they do nothing, because a graph does the work.
class HelperKernels {
public:
  explicit HelperKernels(Processor &processor) : processor(processor) {}

  bool prepares = false, skips = false;

  void copyBox(cuda::Stream *stream, void *to, const void *from, const StridedBox &box);
  /// Writes `value`, the bits of an element, to the box in `to`.
  void fillBox(cuda::Stream *stream, void *to, uint64_t value, const Box &box);
  void clear(cuda::Stream *stream, void *to, int64_t bytes);
  void copyBytes(cuda::Stream *stream, void *to, const void *from, int64_t bytes);
  /// Combines `count` elements of `members` arrays in their order. The arrays begin `stride` bytes
  /// apart. bf16 and f16 are combined in f32 and rounded once.
  void reduce(cuda::Stream *stream, int64_t dtype, int64_t reduction, void *to, const void *from,
              int64_t stride, int64_t members, int64_t count);
  /// Writes 4 times the number of the first element that is not finite, plus 0 for NaN, 1 for
  /// -infinity and 2 for infinity, to a word that begins as ones in all bits. Does nothing for
  /// integers. If `existing` counts rows, looks at these rows alone.
  void findNotFinite(cuda::Stream *stream, int64_t dtype, const void *data, int64_t count,
                     const ExistingRows &existing, void *word);
  /// Rows by index: `from` is [outer, size, row bytes], `indices` (i64) [count], `to`
  /// [outer, count, row bytes]. Skips indices that are out of range.
  void gatherRows(cuda::Stream *stream, void *to, const void *from, const void *indices,
                  int64_t outer, int64_t size, int64_t count, int64_t rowBytes);
  /// The reverse: replaces rows of `to`, in the order of the indices.
  void scatterRows(cuda::Stream *stream, int64_t indexType, void *to, const void *from,
                   const void *indices, int64_t outer, int64_t size, int64_t count,
                   int64_t rowBytes);
  /// Adds to a word the choices that are at least 0 before a limit and below 0 behind it.
  void countDropped(cuda::Stream *stream, int64_t indexType, const void *before, const void *behind,
                    int64_t count, void *word);
  /// Writes the position of the first index out of range to the fault word, and all indices as i64
  /// to `log` unless it is null. With `skips` -1 is in range.
  void checkIndices(cuda::Stream *stream, int64_t indexType, const void *indices, int64_t count,
                    int64_t size, bool skips, void *word, void *log);

  // Weights in the forms in which they travel (`mw_rt_form`). Encoding nvfp4 takes an even number of
  // columns.
  void encode(cuda::Stream *stream, const mw_rt_form &form, int64_t dtype, const void *weight,
              const void *largest, void *to);
  void decode(cuda::Stream *stream, const mw_rt_form &form, int64_t dtype, const void *from,
              void *weight);
  /// Writes the largest magnitude of `count` floats as f32, NaN if one is.
  void findLargest(cuda::Stream *stream, int64_t dtype, const void *data, int64_t count, void *to);

private:
  void launch(cuda::Stream *stream, const std::string &name, const std::string &text,
              int64_t threads, std::vector<uint64_t> arguments);

  Processor &processor;
};

} // namespace meshwright::rt::gpu

#endif // MESHWRIGHT_RUNTIME_GPU_HELPERKERNELS_H

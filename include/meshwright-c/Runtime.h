/*===- Runtime.h - what compiled programs call ------------------*- C -*-===*\
|*                                                                        *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions. *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                 *|
|*                                                                        *|
|*===--------------------------------------------------------------------===*|
|* The C ABI between compiled programs and the runtime. The compiler        *|
|* writes the descriptors below into the program as constants: all their    *|
|* fields are 64-bit integers, so that a descriptor is an array of them.    *|
\*===----------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_RUNTIME_H
#define MESHWRIGHT_C_RUNTIME_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever anything below does. */
#define MW_RT_ABI_VERSION 3

#define MW_RT_MAX_RANK 16
#define MW_RT_MAX_AXES 16

/* Element types. i1 is stored as bytes, 0 or 1. */
enum {
  MW_F32 = 0,
  MW_BF16 = 1,
  MW_F16 = 2,
  MW_F64 = 3,
  MW_I64 = 4,
  MW_I32 = 5,
  MW_I1 = 6,
};

/* A rank of a run. */
typedef struct mw_rt_context mw_rt_context;

/* A program's entry: the rank's compute stream. `arena` holds its temporaries;
 * `arguments`, `prepared`, `constants` and `results` point to one local buffer
 * each: arguments as they lie, parameters as they were packed at load, arrays
 * of the program; the program writes `results`. Returns 0, or the status of the
 * call that failed. */
typedef int32_t (*mw_rt_entry)(mw_rt_context *context, char *arena, const void *const *arguments,
                               const void *const *prepared, const void *const *constants,
                               const void **results);

/*===----------------------------------------------------------------------===*\
|* Kernels                                                                      *|
\*===----------------------------------------------------------------------===*/

/* A compiled kernel: does the items begin .. end of its work on `buffers`
 * (inputs, then outputs; null where an optional one is absent). Items may be done
 * in any order and by several threads at once, and what one computes does not
 * depend on how they are cut into calls. `workspace` belongs to the calling
 * thread for the time of the call; it is aligned to 64 bytes. */
typedef void (*mw_rt_kernel)(void *const *buffers, int64_t begin, int64_t end, void *workspace);

/* Kernel classes, as reports and traces name them. */
enum {
  MW_RT_ROWS = 0, /* elementwise ops and row reductions */
  MW_RT_GEMM = 1,
  MW_RT_ATTENTION = 2,
  MW_RT_MOVE = 3, /* only moves elements */
};

/* How a kernel is launched. `items` are cut into equal parts, a thread each, of
 * `grain` or more where there are several; `workspace` is in bytes, for each thread.
 * `flops` and `bytes` are what the launch computes and moves at least, for
 * reports. Behind the inputs, `buffers` has the outputs; `--check-finite` reads
 * them as `dtype` and `count` say. */
typedef struct mw_rt_launch {
  int64_t kind, items, grain, workspace, flops, bytes;
  int64_t num_inputs, num_outputs;
  struct {
    int64_t dtype, count;
  } outputs[1];
} mw_rt_launch;

/* How a parameter is stored for the kernels that read it: a matrix of k x n
 * (stored as n x k where `transposed`), in column panels of `panel` columns:
 * [ceil(n / panel)][steps][panel][group], zeros where there is nothing. `group`
 * consecutive k lie together (2 for bf16, whose products are taken in pairs); of
 * such steps there are ceil(k / group), rounded up to a multiple of 4. */
typedef struct mw_rt_packing {
  int64_t dtype, k, n, transposed, panel, group;
} mw_rt_packing;

/* Axes of a mesh, major to minor. A rank's coordinate along one of them is
 * (rank / stride) % size, also where the axis is a part of a mesh axis. */
typedef struct mw_rt_axes {
  int64_t count;
  struct {
    int64_t stride, size;
  } axes[MW_RT_MAX_AXES];
} mw_rt_axes;

enum {
  MW_RT_ALL_REDUCE = 0,
  MW_RT_REDUCE_SCATTER = 1,
  MW_RT_ALL_GATHER = 2,
  MW_RT_ALL_TO_ALL = 3,
  MW_RT_PERMUTE = 4,
  MW_RT_REDISTRIBUTE = 5,
  /* Without communication. */
  MW_RT_SLICE = 6,
  MW_RT_PARTIAL = 7,
};

enum { MW_RT_SUM = 0, MW_RT_MAX = 1 };

/* One tensor of a collective: local shapes before and after, and the dimension
 * it acts on (`from` and `to` of an all-to-all). A slice has in `to_dim` by how
 * many ranks chunks are shifted: coordinate i keeps chunk i - shift. */
typedef struct mw_rt_moved_tensor {
  int64_t dtype, rank, dim, to_dim;
  int64_t in_shape[MW_RT_MAX_RANK], out_shape[MW_RT_MAX_RANK];
  /* Redistribute: the axes of each dimension before and after. */
  int64_t layouts;
} mw_rt_moved_tensor;

/* A collective over `group`, for all tensors in one launch. Behind the tensors,
 * at `extra` (an index into the descriptor seen as integers):
 * - permute: for each linear coordinate over the group the coordinate whose
 *   value it receives, or -1 (it gets zeros);
 * - redistribute: at each tensor's `layouts`, for each dimension the axes
 *   before, then the axes after, each as a count and that many strides and
 *   sizes. `group` are then whole mesh axes that cover all of them. */
typedef struct mw_rt_collective {
  int64_t kind, reduction;
  mw_rt_axes group;
  int64_t extra;
  int64_t num_tensors;
  mw_rt_moved_tensor tensors[1];
} mw_rt_collective;

/* C = A B (+ bias), over batches. A is m x k, B is k x n, C is m x n, stored row-major
 * and densely; `transpose_a` says that A is stored as k x m. The batch has
 * `batch_rank` dimensions; strides count matrices, 0 broadcasts. Sums are
 * taken in f32 (f64 for f64) and rounded once. */
typedef struct mw_rt_gemm {
  int64_t dtype, m, n, k, transpose_a, transpose_b, has_bias;
  int64_t batch_rank;
  int64_t batch[MW_RT_MAX_RANK], stride_a[MW_RT_MAX_RANK], stride_b[MW_RT_MAX_RANK];
} mw_rt_gemm;

/* Rows by index: data [outer, size, inner], indices [count], result [outer,
 * count, inner]. With `has_offset`, rows offset .. offset + size of a larger
 * table are here, and other indices give zeros. Those that are negative, or not
 * below the size of the whole table, `total`, are an error. */
typedef struct mw_rt_gather {
  int64_t dtype, index_dtype, outer, size, inner, count, total, has_offset, offset_dtype;
} mw_rt_gather;

/* Elements by index: data [outer, size, inner], indices and result [outer,
 * count, inner]. */
typedef struct mw_rt_take_along {
  int64_t dtype, index_dtype, outer, size, inner, count;
} mw_rt_take_along;

/* Of a dimension sharded over `axes`, in a local tensor [outer, rows, inner],
 * what is at `size` and behind becomes `value` (the bits of a double). */
typedef struct mw_rt_mask {
  int64_t dtype;
  mw_rt_axes axes;
  int64_t outer, rows, inner, size, value;
} mw_rt_mask;

typedef struct mw_rt_axis_index {
  int64_t dtype;
  mw_rt_axes axes;
  int64_t chunk;
} mw_rt_axis_index;

/* The order of a dimension's elements: see meshwright/TokenOrder.h. */
enum { MW_RT_NATURAL = 0, MW_RT_ZIGZAG = 1, MW_RT_STRIPED = 2 };

/* Rows of a tensor [outer, padded, inner], of which `size` are true, from one
 * order to another; padding stays behind them. */
typedef struct mw_rt_reorder {
  int64_t dtype, outer, size, padded, inner, from_order, from_ranks, to_order, to_ranks;
} mw_rt_reorder;

/* The positions (i64) of the elements that a rank has of a dimension of `size`
 * elements in an order, padded to `padded` and sharded over `axes`; coordinate i
 * has chunk i - shift. -1 for padding. */
typedef struct mw_rt_positions {
  mw_rt_axes axes;
  int64_t size, padded, order, order_ranks, shift;
} mw_rt_positions;

/* The calls. `op` is an index into the program's table of op names, for
 * errors. All return 0, or 1 once an error has been recorded: the program then
 * returns at once. */
int32_t mw_rt_run_kernel(mw_rt_context *context, int64_t op, const mw_rt_launch *what,
                         mw_rt_kernel kernel, void *const *buffers);
/* A collective on the compute stream: returns when the outputs are there. */
int32_t mw_rt_run_collective(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                             const void *const *inputs, void *const *outputs);
/* Hands a collective to communication stream `stream` (1, 2, ...), behind what
 * the compute stream has done so far and what that stream was handed before.
 * `ticket` names it to its wait: each start of a program has its own. The
 * arrays of pointers are copied; inputs must stay and outputs be left alone
 * until the wait. */
int32_t mw_rt_start(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                    int64_t stream, int64_t ticket, const void *const *inputs,
                    void *const *outputs);
/* Returns when it is done. */
int32_t mw_rt_wait(mw_rt_context *context, int64_t op, int64_t ticket);
int32_t mw_rt_run_gemm(mw_rt_context *context, int64_t op, const mw_rt_gemm *what, const void *a,
                       const void *b, const void *bias, void *c);
int32_t mw_rt_run_gather(mw_rt_context *context, int64_t op, const mw_rt_gather *what,
                         const void *data, const void *indices, const void *offset, void *result);
int32_t mw_rt_run_take_along(mw_rt_context *context, int64_t op, const mw_rt_take_along *what,
                             const void *data, const void *indices, void *result);
int32_t mw_rt_run_mask(mw_rt_context *context, int64_t op, const mw_rt_mask *what,
                       const void *input, void *result);
int32_t mw_rt_run_axis_index(mw_rt_context *context, int64_t op, const mw_rt_axis_index *what,
                             void *result);
int32_t mw_rt_run_reorder(mw_rt_context *context, int64_t op, const mw_rt_reorder *what,
                          const void *input, void *result);
int32_t mw_rt_run_positions(mw_rt_context *context, int64_t op, const mw_rt_positions *what,
                            void *result);
/* Hands a value to whoever watches the run (`--check`). */
int32_t mw_rt_run_probe(mw_rt_context *context, int64_t op, int64_t probe, const void *value);

#ifdef __cplusplus
}
#endif

#endif /* MESHWRIGHT_C_RUNTIME_H */

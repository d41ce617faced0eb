/*===- Runtime.h - the calls of compiled programs ---------------*- C -*-===*\
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

/* The version of this file. Changes whenever a declaration below changes. */
#define MW_RT_ABI_VERSION 21

#define MW_RT_MAX_RANK 16
#define MW_RT_MAX_AXES 16

/* Element types: MW_F32, MW_BF16, ... */
enum {
#define MW_ELEMENT_TYPE(ID, ...) MW_##ID,
#include "meshwright-c/ElementTypes.def"
};

/* A rank of a run. */
typedef struct mw_rt_context mw_rt_context;

/* A program's entry, which issues the work of a rank's compute stream. `arena` holds the
 * temporaries. `arguments`, `prepared`, `constants` and `results` are arrays of pointers
 * to local buffers: arguments, packed parameters, constants of the program, and results,
 * whose pointers the program writes. Before, `results` has memory for the new values of states
 * that the program writes there, and for logs (`mw_rt_replace_rows`). All of them are in the memory of the rank's device.
 * Returns 0, or the status of the call that failed. */
typedef int32_t (*mw_rt_entry)(mw_rt_context *context, char *arena, const void *const *arguments,
                               const void *const *prepared, const void *const *constants,
                               const void **results);

/*===----------------------------------------------------------------------===*\
|* Kernels                                                                      *|
\*===----------------------------------------------------------------------===*/

/* A compiled kernel: does the items [begin, end) of its work on `buffers` (inputs, then
 * outputs; null for an optional one that is absent). Several threads may do items at
 * once, in any order. The result of an item does not depend on how the items are split
 * into calls. `workspace` belongs to the calling thread during the call and is aligned
 * to 64 bytes. */
typedef void (*mw_rt_kernel)(void *const *buffers, int64_t begin, int64_t end, void *workspace);

/* Kernel classes, as reports and traces name them. */
enum {
  MW_RT_ROWS = 0, /* elementwise ops and row reductions */
  MW_RT_GEMM = 1,
  MW_RT_ATTENTION = 2,
  MW_RT_MOVE = 3, /* only moves elements */
};

/* How a kernel is launched. `items` are split into equal parts, one for each thread; if there are several parts, each has
 * at least `grain` items. `workspace` is in bytes for each thread. `flops` and `bytes` are the least that the launch computes
 * and moves, for reports. `buffers` has the inputs, then the outputs. `--check-finite` reads the outputs by `dtype` and
 * `count`. If `rows` is not 0, the first of these rows of the outputs exist, as many as the i64 at `last` of input `counter`
 * says, and other numbers are those of all rows. With `items_are_rows` the first items compute the first rows. */
typedef struct mw_rt_output { int64_t dtype, count; } mw_rt_output;

typedef struct mw_rt_launch {
  int64_t kind, items, grain, workspace, flops, bytes;
  int64_t rows, counter, last, items_are_rows, num_inputs, num_outputs;
  mw_rt_output outputs[1];
} mw_rt_launch;

/* How a weight is prepared for the kernels that read it: cast from `stored` to `dtype`, both f32,
 * bf16 or f16 if they differ, and packed. It is a matrix of k x n (stored as n x k if
 * `transposed`), in panels of `panel` columns: [ceil(n / panel)][steps][panel][group]. Elements
 * beyond the matrix are zeros. `group` consecutive k are stored together (2 for bf16, which is
 * multiplied in pairs). There are ceil(k / group) steps, rounded up to a multiple of 4. If `batch` is
 * more than 1, so many matrices follow one another, and so do their panels. With a panel of 0 it is not
 * packed: k x n elements in their order.
 *
 * With a `form` (MW_RT_MXFP8, ...) and no panel it is brought to the form in which it travels, as a
 * matrix of k x n. With a form and a panel it is stored in the form, decoded and packed. There is one
 * matrix then. */
typedef struct mw_rt_packing {
  int64_t stored, dtype, k, n, transposed, panel, group, form, along, batch;
} mw_rt_packing;

/* The form in which a weight of rows x columns travels: f8E4M3FN with an f8E8M0FNU for each 32 elements
 * along dimension `along`, or f4E2M1FN with an f8E4M3FN for each 16 x 16 elements and an f32 for all of
 * the weight. Blocks begin at the first row and column. A group is as many rows as a block has: its
 * codes in row-major order, its scales, and the f32. The last group has as many bytes as the others. */
enum { MW_RT_PLAIN = 0, MW_RT_MXFP8 = 1, MW_RT_NVFP4 = 2 };

typedef struct mw_rt_form {
  int64_t kind, along, rows, columns;
} mw_rt_form;

/* Axes of a mesh, major to minor. A rank's coordinate along one of them is
 * (rank / stride) % size, also if the axis is a part of a mesh axis. */
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

/* One tensor of a collective: local shapes before and after, and the dimension that the
 * collective changes. An all-to-all moves the sharding from dimension `dim` to `to_dim`. In a
 * slice, `to_dim` is the shift of chunks: coordinate i keeps chunk i - shift. */
typedef struct mw_rt_moved_tensor {
  int64_t dtype, rank, dim, to_dim;
  int64_t in_shape[MW_RT_MAX_RANK], out_shape[MW_RT_MAX_RANK];
  /* Redistribute: the axes of each dimension before and after. Not 0 if some rows do not exist (--check-finite). */
  int64_t layouts, counted;
} mw_rt_moved_tensor;

/* A collective over `group`, for all tensors in one launch. More integers follow the
 * tensors. `extra` and `layouts` are indices into the descriptor as an array of integers:
 * - permute: `extra` has, for each linear coordinate over the group, the coordinate whose
 *   value it receives, or -1 if it receives zeros;
 * - redistribute: each tensor's `layouts` has, for each dimension, the axes before and the
 *   axes after, each as a count followed by strides and sizes. `group` is then a list of
 *   whole mesh axes that covers all of them. */
typedef struct mw_rt_collective {
  int64_t kind, reduction;
  mw_rt_axes group;
  int64_t extra;
  int64_t num_tensors;
  mw_rt_moved_tensor tensors[1];
} mw_rt_collective;

/*===----------------------------------------------------------------------===*\
|* Calls that a device performs                                                 *|
\*===----------------------------------------------------------------------===*/

/* The calls: a kind, MW_RT_CALL_<kind>, and the structure that describes the call, mw_rt_<name>.
 * `mw_rt_perform` takes all of them. */
#define MW_RT_CALLS(CALL)                                                                          \
  CALL(GEMM, gemm)                                                                                 \
  CALL(WEIGHT_GRAD, weight_grad)                                                                   \
  CALL(GATHER, gather)                                                                             \
  CALL(TAKE_ALONG, take_along)                                                                     \
  CALL(INDEX_COPY, index_copy)                                                                     \
  CALL(REPLACE_ROWS, replace_rows)                                                                 \
  CALL(SCATTER_ADD, scatter_add)                                                                   \
  CALL(TOP_K, top_k)                                                                               \
  CALL(LIMIT, limit)                                                                               \
  CALL(ROUTE, route)                                                                               \
  CALL(TAKE_ROWS, take_rows)                                                                       \
  CALL(SUM_ROWS, sum_rows)                                                                         \
  CALL(REPEAT_ROWS, repeat_rows)                                                                   \
  CALL(SUM_GROUPS, sum_groups)                                                                     \
  CALL(GROUPED_PRODUCT, grouped_product)                                                           \
  CALL(GROUPED_OUTER, grouped_outer)                                                               \
  CALL(SEND_ROWS, send_rows)                                                                       \
  CALL(RETURN_ROWS, return_rows)                                                                   \
  CALL(COMPACT, compact)                                                                           \
  CALL(EXPAND, expand)                                                                             \
  CALL(ALL_GATHER_V, all_gather_v)                                                                 \
  CALL(REDUCE_SCATTER_V, reduce_scatter_v)                                                         \
  CALL(MASK, mask)                                                                                 \
  CALL(AXIS_INDEX, axis_index)                                                                     \
  CALL(REORDER, reorder)                                                                           \
  CALL(PLACE, place)                                                                               \
  CALL(POSITIONS, positions)                                                                       \
  CALL(PACK, pack)                                                                                 \
  CALL(LARGEST, largest)                                                                           \
  CALL(ENCODE, encode)                                                                             \
  CALL(DECODE, decode)                                                                             \
  CALL(DEQUANTIZE, dequantize)                                                                     \
  CALL(CODED_PRODUCT, coded_product)                                                               \
  CALL(NOTE_ROWS, note_rows)                                                                       \
  CALL(NOTE_DROPPED, note_dropped)

/* The calls that each device performs. A program for the device makes no others: its compiler
 * writes a kernel instead. */
#define MW_RT_CPU_CALLS(CALL)                                                                      \
  CALL(gemm)                                                                                       \
  CALL(weight_grad)                                                                                \
  CALL(gather)                                                                                     \
  CALL(take_along)                                                                                 \
  CALL(index_copy)                                                                                 \
  CALL(replace_rows)                                                                               \
  CALL(scatter_add)                                                                                \
  CALL(top_k)                                                                                      \
  CALL(limit)                                                                                      \
  CALL(route)                                                                                      \
  CALL(take_rows)                                                                                  \
  CALL(sum_rows)                                                                                   \
  CALL(repeat_rows)                                                                                \
  CALL(sum_groups)                                                                                 \
  CALL(grouped_product)                                                                            \
  CALL(grouped_outer)                                                                              \
  CALL(send_rows)                                                                                  \
  CALL(return_rows)                                                                                \
  CALL(compact)                                                                                    \
  CALL(expand)                                                                                     \
  CALL(all_gather_v)                                                                               \
  CALL(reduce_scatter_v)                                                                           \
  CALL(mask)                                                                                       \
  CALL(axis_index)                                                                                 \
  CALL(reorder)                                                                                    \
  CALL(place)                                                                                      \
  CALL(positions)                                                                                  \
  CALL(pack)                                                                                       \
  CALL(largest)                                                                                    \
  CALL(encode)                                                                                     \
  CALL(decode)                                                                                     \
  CALL(dequantize)                                                                                 \
  CALL(coded_product)
#define MW_RT_GPU_CALLS(CALL)                                                                      \
  CALL(gemm)                                                                                       \
  CALL(weight_grad)                                                                                \
  CALL(index_copy)                                                                                 \
  CALL(replace_rows)                                                                               \
  CALL(send_rows)                                                                                  \
  CALL(return_rows)                                                                                \
  CALL(compact)                                                                                    \
  CALL(expand)                                                                                     \
  CALL(all_gather_v)                                                                               \
  CALL(reduce_scatter_v)                                                                           \
  CALL(mask)                                                                                       \
  CALL(axis_index)                                                                                 \
  CALL(reorder)                                                                                    \
  CALL(place)                                                                                      \
  CALL(positions)                                                                                  \
  CALL(largest)                                                                                    \
  CALL(encode)                                                                                     \
  CALL(decode)                                                                                     \
  CALL(note_rows)                                                                                  \
  CALL(note_dropped)

enum {
#define MW_RT_KIND(kind, name) MW_RT_CALL_##kind,
  MW_RT_CALLS(MW_RT_KIND)
#undef MW_RT_KIND
};

/* The first member of each structure: the kind of the call. The comment of a structure names the
 * buffers of the call in their order, inputs first. */
typedef struct mw_rt_call {
  int64_t kind;
} mw_rt_call;

/* c = a b (+ bias), over batches. Buffers: a, b, bias or null, c. a is m x k, b is k x n, c is
 * m x n, stored densely in row-major order. If `transpose_a` is set, a is stored as k x m;
 * `transpose_b` likewise. The batch has `batch_rank` dimensions. Strides count matrices; stride 0
 * broadcasts. Sums are taken in f32 (f64 for f64) and rounded once to `result`, the type of c: that
 * of a and b, or f32. If `form` has a kind, b is a single matrix in the form in which a weight travels,
 * with the rows and columns in which it is stored. */
typedef struct mw_rt_gemm {
  mw_rt_call call;
  int64_t dtype, result, m, n, k, transpose_a, transpose_b;
  int64_t batch_rank;
  int64_t batch[MW_RT_MAX_RANK], stride_a[MW_RT_MAX_RANK], stride_b[MW_RT_MAX_RANK];
  mw_rt_form form;
} mw_rt_gemm;

/* c = a^T b. Buffers: a, b, c. a is rows x m, b is rows x n, c is m x n, stored densely in
 * row-major order. c is f64 for f64, else f32, and so are the sums. */
typedef struct mw_rt_weight_grad {
  mw_rt_call call;
  int64_t dtype, rows, m, n;
} mw_rt_weight_grad;

/* Rows by index. Buffers: data [outer, size, inner], indices [count], offset or null, result
 * [outer, count, inner]. With an offset, data has the rows [offset, offset + size) of a larger
 * table, and indices of other rows give zeros. An index that is negative, or not below `total`,
 * the size of the whole table, is an error. */
typedef struct mw_rt_gather {
  mw_rt_call call;
  int64_t dtype, index_dtype, offset_dtype, outer, size, inner, count, total;
} mw_rt_gather;

/* Elements by index. Buffers: data [outer, size, inner], indices and result [outer, count,
 * inner]. */
typedef struct mw_rt_take_along {
  mw_rt_call call;
  int64_t dtype, index_dtype, outer, size, inner, count;
} mw_rt_take_along;

/* Rows that a source replaces by index: data [outer, size, inner], indices [count], source
 * [outer, count, inner]. An index that is out of range is an error; with `skips`, -1 has no row. */
typedef struct mw_rt_rows {
  int64_t dtype, index_dtype, outer, size, inner, count, skips;
} mw_rt_rows;

/* Replaces rows in a copy of the data. Buffers: data, indices, source, result. */
typedef struct mw_rt_index_copy {
  mw_rt_call call;
  mw_rt_rows rows;
} mw_rt_index_copy;

/* Replaces rows of a state in place. Buffers: state, indices, source, log or null. Before, it
 * writes the indices (i64) and the rows that it replaces to log + `offset`, each aligned to 64
 * bytes, so that the run can be undone. */
typedef struct mw_rt_replace_rows {
  mw_rt_call call;
  mw_rt_rows rows;
  int64_t offset;
} mw_rt_replace_rows;

/* Sums rows by index. Buffers: updates [outer, count, inner], indices [count], or [outer, count,
 * inner] if `along` is set, offset or null, and result [outer, size, inner], which begins as zeros.
 * The result is f64 for f64, else f32. The offset and `total` are as in mw_rt_gather: updates of
 * other rows are left out. */
typedef struct mw_rt_scatter_add {
  mw_rt_call call;
  int64_t dtype, index_dtype, offset_dtype, outer, size, inner, count, along, total;
} mw_rt_scatter_add;

/* The indices of the `k` largest elements of each row, the largest first; of equal ones the lowest
 * index. NaN is larger than all numbers. Buffers: scores [rows, size], result [rows, k] (i64). */
typedef struct mw_rt_top_k {
  mw_rt_call call;
  int64_t dtype, rows, size, k;
} mw_rt_top_k;

/* Leaves out choices of experts. Buffers: indices [choices], result [choices]. Each expert keeps its
 * first `capacity` ones; the others become -1. Reports name the routing `layer`. */
typedef struct mw_rt_limit {
  mw_rt_call call;
  int64_t dtype, choices, capacity, layer;
} mw_rt_limit;

/* The places of the rows of a routing. Buffers: indices [tokens, choices], offset or null, the offsets of
 * the tokens or null, and the results, all i64: offsets [experts + 1], the choices of the rows [capacity],
 * and the places of the choices [tokens, choices]. A choice of an expert from the offset on has a row,
 * experts first, then in the order of choices. -1 has none; other indices below 0, or not below `total`,
 * are an error, and so are more rows than the capacity. `shared` experts are one here: the indices divided
 * by it count, and a token has one row of each, at its first choice. Tokens with offsets are rows of `outer`
 * groups of the experts here, of which they choose those of their own group; the last one of `outer` + 1
 * offsets is the number of tokens that exist. */
typedef struct mw_rt_route {
  mw_rt_call call;
  int64_t index_dtype, offset_dtype, tokens, choices, experts, total, shared, outer, capacity, layer;
} mw_rt_route;

/* Notes for the report how many rows experts have, where a kernel finds their places. Buffers: the offsets
 * of a routing, i64 [experts + 1], and its offset or null. */
typedef struct mw_rt_note_rows {
  mw_rt_call call;
  int64_t offset_dtype, experts, layer;
} mw_rt_note_rows;

/* Notes for the report how many choices a limit dropped, where a kernel does so. Buffers: the choices before
 * and behind it. */
typedef struct mw_rt_note_dropped {
  mw_rt_call call;
  int64_t dtype, choices, layer;
} mw_rt_note_dropped;

/* Rows by choice. Buffers: input [tokens, inner], choices [rows], result [rows, inner]. Row r is row
 * choices[r] / group. Choices that are -1 come last, and their rows need not be written. */
typedef struct mw_rt_take_rows {
  mw_rt_call call;
  int64_t dtype, rows, inner, group;
} mw_rt_take_rows;

/* Sums of rows at the places of choices. Buffers: rows [any, inner], places [tokens, choices], result
 * [tokens, inner]. Place -1 adds nothing. */
typedef struct mw_rt_sum_rows {
  mw_rt_call call;
  int64_t dtype, tokens, choices, inner;
} mw_rt_sum_rows;

/* Rows of experts. Buffers: table [experts, inner], offsets [experts + 1], result [rows, inner]. Row r
 * is that of the expert whose rows contain r. Rows behind the last one need not be written. */
typedef struct mw_rt_repeat_rows {
  mw_rt_call call;
  int64_t dtype, experts, rows, inner;
} mw_rt_repeat_rows;

/* Sums of the rows of each expert. Buffers: rows [any, inner], offsets [experts + 1], result [experts,
 * inner], in `result`: the type of sums, or that of the rows. */
typedef struct mw_rt_sum_groups {
  mw_rt_call call;
  int64_t dtype, result, experts, inner;
} mw_rt_sum_groups;

/* The rows of each expert times its matrix. Buffers: a [rows, k], b [experts, k, n], or [experts, n, k]
 * with `transpose_b`, offsets [experts + 1], c [rows, n]. Sums are as in mw_rt_gemm. Rows behind the
 * last one need not be written. */
typedef struct mw_rt_grouped_product {
  mw_rt_call call;
  int64_t dtype, result, rows, experts, n, k, transpose_b;
} mw_rt_grouped_product;

/* c[e] = a[e]^T b[e] for the rows of each expert. Buffers: a [rows, m], b [rows, n], offsets [experts +
 * 1], c [experts, m, n]. c is f64 for f64, else f32, and so are the sums. */
typedef struct mw_rt_grouped_outer {
  mw_rt_call call;
  int64_t dtype, rows, experts, m, n;
} mw_rt_grouped_outer;

/* Rows that move between the ranks of tokens and of experts. `group` names the ranks, has no tensors, and
 * is the identity of their meetings. A rank has rows of `experts` experts for its tokens, and of `own` ones
 * for all tokens of the group: those from its coordinate times `own` on. Rows are `inner` elements. Reports
 * name the routing `layer`. In a call of an entry, rows of one `routing` along the same axes are as many; -1 if
 * that is not known. */
typedef struct mw_rt_moved_rows {
  mw_rt_collective group;
  int64_t dtype, inner, experts, own, from_capacity, to_capacity, layer, routing;
} mw_rt_moved_rows;

/* Rows of tokens to their experts. Buffers: rows, offsets [experts + 1], and the results: rows, expert by
 * expert, then in the order of the senders; their parts [own * ranks + 1] by expert and sender, and offsets
 * [own + 1] by expert. More rows than `to_capacity` are an error. */
typedef struct mw_rt_send_rows {
  mw_rt_call call;
  mw_rt_moved_rows what;
} mw_rt_send_rows;

/* Rows of experts back to their tokens. Buffers: rows, parts [own * ranks + 1], offsets [experts + 1] of the
 * rows of tokens, result. */
typedef struct mw_rt_return_rows {
  mw_rt_call call;
  mw_rt_moved_rows what;
} mw_rt_return_rows;

/* Rows of groups, `tokens` for each, of which `counts` [replicas * groups] (i64) are true, and the true rows of
 * a replica's groups in room for `capacity`. Numbers below 0, above `tokens`, or above `capacity` together are an error.
 * In a call of an entry, calls with one `source` have equal numbers; -1 if that is not known. */
typedef struct mw_rt_counted_rows {
  int64_t dtype, outer, inner, replicas, groups, tokens, capacity, source;
} mw_rt_counted_rows;

/* Buffers of `compact`: rows [outer, replicas * groups * tokens, inner], counts, and the result [outer,
 * replicas * capacity, inner]; of `expand`: rows and result the other way round. Rows of the result behind
 * true ones are zeros. */
typedef struct mw_rt_compact { mw_rt_call call; mw_rt_counted_rows rows; } mw_rt_compact;
typedef struct mw_rt_expand { mw_rt_call call; mw_rt_counted_rows rows; } mw_rt_expand;

/* True rows that the members of a group exchange. `group` names them, has no tensors, and is the identity of
 * their meetings. Member i has `own` rows of one group: those from i * own on. There is one replica. */
typedef struct mw_rt_exchanged_rows { mw_rt_collective group; mw_rt_counted_rows rows; int64_t own; } mw_rt_exchanged_rows;

/* Buffers of `all_gather_v`: rows [outer, own, inner], counts, and the results [outer, capacity, inner] and
 * counts; of `reduce_scatter_v`: rows and result the other way round. It sums in the order of ranks. Rows of
 * the result behind true ones are zeros. */
typedef struct mw_rt_all_gather_v { mw_rt_call call; mw_rt_exchanged_rows what; } mw_rt_all_gather_v;
typedef struct mw_rt_reduce_scatter_v { mw_rt_call call; mw_rt_exchanged_rows what; } mw_rt_reduce_scatter_v;

/* Masks a dimension that is sharded over `axes`. Buffers: input, result. In a local tensor [outer,
 * rows, inner], elements with a global index of `size` or above become `value` (the bits of a
 * double). */
typedef struct mw_rt_mask {
  mw_rt_call call;
  mw_rt_axes axes;
  int64_t dtype, outer, rows, inner, size, value;
} mw_rt_mask;

/* A rank's linear coordinate over `axes`, times `chunk`. Buffers: result. */
typedef struct mw_rt_axis_index {
  mw_rt_call call;
  mw_rt_axes axes;
  int64_t dtype, chunk;
} mw_rt_axis_index;

/* The order of a dimension's elements: see meshwright/TokenOrder.h. */
enum { MW_RT_CONTIGUOUS = 0, MW_RT_ZIGZAG = 1, MW_RT_STRIPED = 2 };

/* Reorders the rows of a tensor [outer, padded, inner] from one order to another. Buffers: input,
 * result. The first `size` rows are true ones; padding stays at the end. */
typedef struct mw_rt_reorder {
  mw_rt_call call;
  int64_t dtype, outer, size, padded, inner, from_order, from_ranks, to_order, to_ranks;
} mw_rt_reorder;

/* Puts chunks of a dimension that is sharded over `axes` at their places in the whole one. Buffers:
 * `count` chunks [outer, rows, inner], and the result [outer, chunks * rows, inner]. `count` shifts
 * follow the structure: of a rank with coordinate i, number j is chunk i - shift j. The other
 * chunks of the result are zeros. */
typedef struct mw_rt_place {
  mw_rt_call call;
  mw_rt_axes axes;
  int64_t dtype, outer, rows, inner, count;
} mw_rt_place;

/* The positions (i64) of a rank's elements of a dimension of `size` elements in an order,
 * padded to `padded` and sharded over `axes`. Buffers: if `has_size`, the number (i64) of elements
 * that are no padding, then the result. Coordinate i has chunk i - shift. Padding has position -1. */
typedef struct mw_rt_positions {
  mw_rt_call call;
  mw_rt_axes axes;
  int64_t size, padded, order, order_ranks, shift, has_size;
} mw_rt_positions;

/* Prepares a weight during the run. Buffers: the weight as it is stored, the result. */
typedef struct mw_rt_pack {
  mw_rt_call call;
  mw_rt_packing packing;
} mw_rt_pack;

/* The largest magnitude of `count` floats, NaN if one is. Buffers: the floats, the result (f32). */
typedef struct mw_rt_largest {
  mw_rt_call call;
  int64_t dtype, count;
} mw_rt_largest;

/* Brings a weight to a form (`dist.encode`). Buffers: the weight, the largest magnitude of the whole
 * weight (f32) or null, the result. An element that is not finite is an error. */
typedef struct mw_rt_encode {
  mw_rt_call call;
  int64_t dtype;
  mw_rt_form form;
} mw_rt_encode;

/* Brings a weight back from a form (`dist.decode`). Buffers: the weight in the form, the result. */
typedef struct mw_rt_decode {
  mw_rt_call call;
  int64_t dtype;
  mw_rt_form form;
} mw_rt_decode;

/* Matrices of codes, and the scales of their blocks: [matrices, rows, columns], and [matrices, blocks of
 * rows, blocks of columns], where the last blocks may be cut. `codes` and `scales` are element types.
 * Codes of f4E2M1FN share bytes along a row, which has an even number of them. */
typedef struct mw_rt_codes {
  int64_t codes, scales, matrices, rows, columns, block_rows, block_columns;
} mw_rt_codes;

/* Brings weights back from codes (`nn.dequantize`). Buffers: codes, scales, result [matrices, rows,
 * columns] of `dtype`. */
typedef struct mw_rt_dequantize {
  mw_rt_call call;
  int64_t dtype;
  mw_rt_codes codes;
} mw_rt_dequantize;

/* Rows times a weight of codes, or the rows of each expert times its own. Buffers: a [rows, k], codes,
 * scales, bias [n] or null, offsets [matrices + 1] or null, c [rows, n]. The weight is stored as k x n, or
 * as n x k with `transpose_b`. Without offsets all rows belong to the one matrix; rows behind the last
 * offset need not be written. Sums are as in mw_rt_gemm. */
typedef struct mw_rt_coded_product {
  mw_rt_call call;
  int64_t dtype, result, count, n, k, transpose_b;
  mw_rt_codes codes;
} mw_rt_coded_product;

/*===----------------------------------------------------------------------===*\
|* The functions                                                                *|
\*===----------------------------------------------------------------------===*/

/* `op` is an index into the program's table of op names, for errors. All return 0, or 1 once an
 * error is recorded; the program then returns at once. Work is done in the order of the calls, by
 * the device of the rank: a call may return earlier. */
int32_t mw_rt_run_kernel(mw_rt_context *context, int64_t op, const mw_rt_launch *what,
                         mw_rt_kernel kernel, void *const *buffers);
/* Performs a call on `buffers`: its inputs, then its outputs; null for an optional one that is
 * absent. `what` is the head of the structure of its kind. */
int32_t mw_rt_perform(mw_rt_context *context, int64_t op, const mw_rt_call *what,
                      void *const *buffers);
/* Performs a collective on the compute stream. */
int32_t mw_rt_run_collective(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                             const void *const *inputs, void *const *outputs);
/* Starts a collective on communication stream `stream` (1, 2, ...), after the work that
 * the compute stream and that stream were given so far. `ticket` identifies it to its
 * wait; each start of a program has its own number. The arrays of pointers are copied.
 * Until the wait, inputs must stay unchanged and outputs must not be accessed. */
int32_t mw_rt_start(mw_rt_context *context, int64_t op, const mw_rt_collective *what,
                    int64_t stream, int64_t ticket, const void *const *inputs,
                    void *const *outputs);
/* The same for a call in which ranks meet: `send_rows`, `return_rows`, `all_gather_v`, `reduce_scatter_v`. */
int32_t mw_rt_start_call(mw_rt_context *context, int64_t op, const mw_rt_call *what, int64_t stream,
                         int64_t ticket, void *const *buffers);
/* Makes the compute stream wait for that collective. */
int32_t mw_rt_wait(mw_rt_context *context, int64_t op, int64_t ticket);
/* The calls between the two are the same in each call of the entry, but for the addresses of its
 * buffers, and need nothing of the host: a device may record the work and repeat it, and let the
 * calls themselves do nothing. Each start between the two is waited for between them. */
int32_t mw_rt_graph_begin(mw_rt_context *context, int64_t op);
int32_t mw_rt_graph_end(mw_rt_context *context, int64_t op);
/* Passes a value to the observer of the run (`--check`), if there is one. */
int32_t mw_rt_run_probe(mw_rt_context *context, int64_t op, int64_t probe, const void *value);

#ifdef __cplusplus
}
#endif

#endif /* MESHWRIGHT_C_RUNTIME_H */
